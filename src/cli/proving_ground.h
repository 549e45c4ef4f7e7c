// Where `isola prove` shows that the gate cannot be got around: a launcher and a gate of their own in a throw-away
// network namespace, and servers of ours behind a cable. The machine's own network, launcher and gate have no part in
// it, and nothing is sent anywhere.
//
//   ISOLA_TRY(auto ground, ProvingGround::open());
//   ground->at_home([&] { …start a launcher on ground->data_dir()… });
//   std::string why = ground->control(program, binary);     // empty: without a gate it gets through, as it must
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "gate/outside.h"

namespace isola::cli {

struct HostileProgram;

class ProvingGround {
 public:
  static Result<std::unique_ptr<ProvingGround>> open();
  ~ProvingGround();  // after whoever uses data_dir()
  ProvingGround(const ProvingGround&) = delete;
  ProvingGround& operator=(const ProvingGround&) = delete;

  const std::string& data_dir() const { return data_dir_; }
  // Runs `body` where the gate lives; a launcher that is started there asks our name server.
  void at_home(const std::function<void()>& body) const;
  // Runs the program there, where nothing stands between it and the servers; told once per program.
  std::string control(const HostileProgram& program, const std::string& binary);

  // For programs that are judged by what reached the name server.
  size_t questions() { return outside_->asked().size(); }
  // Empty, or what got out since then.
  std::string leaked(const HostileProgram& program, size_t since);

 private:
  ProvingGround() = default;
  gate::Cable cable_;
  std::unique_ptr<gate::Outside> outside_;
  std::string data_dir_;
  std::map<std::string, std::string> controls_;
};

}  // namespace isola::cli
