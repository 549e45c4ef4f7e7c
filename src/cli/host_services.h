// Services of this machine that nobody inside a sandbox may reach, for as long as `isola prove` runs: whoever asks them
// is answered, so that a sandbox with a way to the host gets an answer and "no answer" means something.
//
//   ISOLA_TRY(auto services, HostServices::open());
//   services->variables()        {"ISOLA_CANARY_TCP=192.0.2.2 40123,127.0.0.1 40124", …}, for the programs inside
//
// They listen on the machine's own addresses (a wire to the host would lead there) and on loopback (whoever shared the
// host's network would be there). A machine that has nothing but loopback has only the second, and says so.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::cli {

class HostServices {
 public:
  enum class Kind { tcp4, tcp6, udp4, ping4 };

  // In the network namespace of the calling thread.
  static Result<std::unique_ptr<HostServices>> open();
  // The same addresses and ports once more, in the network namespace that the calling thread is in now, whether it has
  // those addresses or not. For the test that a sandbox which shares the host's network is called a breach.
  Result<std::unique_ptr<HostServices>> open_again() const;
  ~HostServices();
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  // NAME=value. A service that this machine cannot have (no IPv6) has no variable.
  std::vector<std::string> variables() const;
  // Empty, or why the program of this name has nobody to ask on this machine.
  std::string lacks(std::string_view program) const;
  static bool asked_by(std::string_view program);
  // No address but loopback: a wire would lead nowhere.
  bool only_loopback() const;

 private:
  struct Service {
    Kind kind;
    std::string address;
    uint16_t port = 0;
    Fd fd;
  };

  HostServices() = default;
  static Result<Service> listen(Kind kind, const std::string& address, uint16_t port);
  Result<void> start();
  void serve();
  void answer(const Service& service, std::vector<Fd>& talks) const;
  std::string places(Kind kind) const;  // "ADDRESS PORT,ADDRESS PORT"

  std::vector<Service> services_;
  Fd stop_read_, stop_write_;
  std::thread thread_;
};

}  // namespace isola::cli
