// What all measurements share: a scratch folder, an image (minimal + isola-hello) in a cache of its own, a launcher on
// a data directory of its own, and the same root file system made for programs outside of any sandbox.
//
// Everything lives in the scratch folder and in this process's own mount namespace, so that whoever outlives this
// process needs the folder's name only to clear up (sweep()).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/program.h"
#include "bench/report.h"
#include "guest/client.h"
#include "image/layer_store.h"
#include "launcher/client.h"

namespace isola::bench {

enum class Mode { quick, normal, full };

inline const std::string kHello = "/usr/bin/isola-hello";
inline const std::string kHelloSays = "hello\n";

class Stage {
 public:
  static Result<std::unique_ptr<Stage>> make(const std::string& scratch, Mode mode, Report& report);

  Mode mode() const { return mode_; }
  Report& report() { return report_; }
  template <typename T>
  T pick(T quick, T normal, T full) const {
    return mode_ == Mode::quick ? quick : mode_ == Mode::normal ? normal : full;
  }
  unsigned cores() const;
  const std::string& scratch() const { return scratch_; }
  const std::string& digest() const { return digest_; }
  // The image as an overlay of the host's own, with its upper layer on the same kind of store as a sandbox's.
  const std::string& root() const { return root_; }
  // A further such overlay of another template's blob: on the store, or on the scratch folder's own file system.
  Result<std::string> outside_root(const std::string& name, const std::string& digest, bool on_store);
  // The template's digest, its blob made known to our launcher; not_found when it is not built here.
  Result<std::string> borrow_template(const std::string& name);

  Result<std::string> mount_lower(const std::string& digest);  // its blob, once

  launcher::Client& launcher() { return *launcher_; }
  Result<launcher::Client> connect() const;  // a connection of one's own (for threads)
  // Until the launcher has `parked` parked jails and nothing left to clear away.
  Result<void> settle(uint32_t parked);
  Result<void> settle_with_none_parked();
  Result<void> park(uint32_t count);  // and settle

 private:
  Stage(std::string scratch, Mode mode, Report& report) : scratch_(std::move(scratch)), mode_(mode), report_(report) {}
  Result<void> make_image();
  Result<void> settle(uint32_t least, uint32_t most);
  Result<void> start_launcher();

  std::string scratch_, digest_, root_;
  Mode mode_;
  Report& report_;
  std::unique_ptr<image::LayerStore> store_;
  std::unique_ptr<launcher::Client> launcher_;
};

// Ends the launcher of a scratch folder with everything that it holds, and removes the folder.
void sweep(const std::string& scratch);
std::string own_folder();  // where this program lies, with a slash

// One sandbox that ran isola-hello, alive as long as this is.
struct Ran {
  Timing timing;  // from before the launch request
  launcher::LaunchReply reply;
  std::unique_ptr<guest::PipeClient> guest;
};
Result<Ran> create_and_run(launcher::Client& client, const std::string& digest, bool cold);
Result<Timing> run_in(guest::PipeClient& guest, const std::vector<std::string>& argv, const std::string& expected = {},
                      Clock::time_point start = Clock::now());

// Calls `work(thread)` in `threads` threads until each returns; the first error of any.
Result<void> in_parallel(unsigned threads, const std::function<Result<void>(unsigned thread)>& work);

// The groups of measurements, one file each, in the order of the table.
Result<void> bench_create(Stage& stage);
Result<void> bench_throughput(Stage& stage);
Result<void> bench_density(Stage& stage);
Result<void> bench_transfer(Stage& stage);
Result<void> bench_work(Stage& stage);
Result<void> bench_image(Stage& stage);
// Only when it is asked for by name: each boundary of this machine beside its engine used by hand.
Result<void> bench_boundaries(Stage& stage);
// Before the stage is made: a network of our own, with an address that is nobody's and that sandboxes reach by the
// gate.
Result<void> make_outside();

}  // namespace isola::bench
