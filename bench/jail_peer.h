// criu's own command line on a jail: the same processes in the same namespaces with the same mounts as a sandbox, saved
// and brought back by `criu dump` and `criu restore` with the options that are fastest for them, and nothing else: no
// checksums, nothing put on disk, no copy of the writable layer, no network, no control group, no comparison of
// protections. The root that a restore wants is mounted beforehand, and not timed.
#pragma once

#include <memory>
#include <string>

#include "base/fd.h"
#include "bench/stage.h"
#include "boundary/jail/checkpoint.h"

namespace isola::bench {

class JailPeer {
 public:
  // `digest`: of the template that the jails are made of.
  static Result<std::unique_ptr<JailPeer>> make(Stage& stage, const boundary::jail::Criu& criu,
                                                const std::string& digest);
  ~JailPeer();
  JailPeer(const JailPeer&) = delete;
  JailPeer& operator=(const JailPeer&) = delete;

  // Ends the sandbox whose process 1 this is; its link must be quiesced. Microseconds.
  Result<double> dump(pid_t pid);
  Result<double> restore();  // until the processes run; they end before the next call of anything here
  void end();
  Result<void> forget();  // what was dumped

 private:
  JailPeer() = default;
  Result<void> prepare(Stage& stage, const std::string& digest);
  Result<void> mount_root(uint32_t id_base);
  Result<double> run(std::vector<std::string> words) const;

  boundary::jail::Criu criu_;
  std::string folder_, lower_, layer_, stage_folder_;
  uint32_t id_base_ = 0;
  pid_t restored_ = -1;
};

}  // namespace isola::bench
