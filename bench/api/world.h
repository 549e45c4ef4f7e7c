// A server of the benchmark's own, and the programs that it is held against: all gone when this is.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "bench/report.h"
#include "http/client.h"
#include "launcher/client.h"

namespace isola::bench {

// A child that ends with its owner.
class Child {
 public:
  // Standard output and error go to `log`; `inherit` keeps its number.
  static Result<Child> start(const std::vector<std::string>& argv, const std::string& log, int inherit = -1);
  Child() = default;
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child();
  pid_t pid() const { return pid_; }
  int wait();  // its status, as of waitpid

 private:
  pid_t pid_ = 0;
};

// CPU seconds of a process and its children so far.
double cpu_seconds(pid_t pid);
// Whether such a program is in the path.
bool have(const std::string& program);
// What a program printed, and that it ended well.
Result<std::string> output_of(const std::vector<std::string>& argv);

class World {
 public:
  static Result<World> start(const std::string& isola);
  World(World&&) = default;
  World& operator=(World&&) = delete;
  ~World();

  http::Client client() const;  // with the key
  Result<launcher::Client> launcher() const { return launcher::Client::connect(folder_ + "/data"); }
  // Waits until `count` jails are parked: every round begins like the first.
  Result<void> wait_parked(launcher::Client& launcher, uint32_t count) const;

  const std::string& folder() const { return folder_; }
  const std::string& url() const { return url_; }
  const std::string& key() const { return key_; }
  const std::string& digest() const { return digest_; }
  pid_t server() const { return server_.pid(); }

  Result<std::string> create(http::Client& client) const;  // its id
  Result<void> remove(http::Client& client, const std::string& id) const;

  static constexpr uint32_t kParked = 2;

 private:
  World() = default;
  std::string isola_, folder_, url_, key_, digest_;
  Child server_;
};

enum class Mode { quick, normal, full };
inline int times(Mode mode, int quick, int normal, int full) {
  return mode == Mode::quick ? quick : mode == Mode::normal ? normal : full;
}

Result<void> bench_start(const std::string& isola, Report& report, Mode mode);  // with servers of its own
Result<void> bench_create(const World& world, Report& report, Mode mode);
Result<void> bench_requests(const World& world, Report& report, Mode mode);
Result<void> bench_previews(const World& world, Report& report, Mode mode);

}  // namespace isola::bench
