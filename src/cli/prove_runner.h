// Runs the hostile programs in sandboxes of this machine and judges each from outside (docs/hostile.md is the
// contract).
//
//   ISOLA_TRY(ProveRunner runner, ProveRunner::open(common, "/usr/lib/isola/isola-hostile"));
//   Proof proof = runner.run(program, digest, Birth::pooled);
//
// Programs that need somebody outside (evasions of the gate) run on a proving ground, all others on the launcher of the
// data directory: two runners.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "boundary/state.h"
#include "cli/commands.h"
#include "cli/host_facts.h"
#include "cli/host_services.h"
#include "cli/proving_ground.h"
#include "guest/client.h"
#include "launcher/client.h"

namespace isola::cli {

class Escort;
struct Company;

// One row of `isola-hostile list --json`.
struct HostileProgram {
  std::string name, group, tries, expect;
  bool outside = false;                          // needs a ProvingGround
  bool has_control = false;                      // it gets through where nothing stands against it
  std::string leaks;                             // a breach when names with this text reach a name server outside …
  size_t leaks_most = 0;                         // … more often than this
  std::vector<std::string> allowed_inside = {};  // boundaries whose own kernel lets it succeed, to nobody's harm
};
Result<std::vector<HostileProgram>> list_programs(const std::string& binary);

// A program of this machine, run to its end.
struct Ran {
  int code = -1;       // 128 + the signal that ended it
  std::string output;  // of stdout
};
Result<Ran> run_program(const std::string& program, std::vector<std::string> arguments,
                        const std::vector<std::string>& more_environment = {});

struct Proof {
  enum class Verdict { held, breach, untried, error };
  Verdict verdict = Verdict::error;
  std::string how;       // the program's own line, or what the runner saw
  bool excused = false;  // untried, for a reason that is known: every other untried one is a failure
};

class ProveRunner {
 public:
  // `binary`: isola-hostile. Starts a launcher if none runs.
  static Result<ProveRunner> open(const Common& common, const std::string& binary, BoundaryKind kind);
  // On a launcher of its own there, for programs that need an outside. `ground` outlives the runner.
  static Result<ProveRunner> open(const Common& common, const std::string& binary, BoundaryKind kind,
                                  ProvingGround& ground);
  ProveRunner(ProveRunner&&) = default;
  ~ProveRunner();

  bool offers(Birth birth);  // not every machine has memory images
  // A fresh sandbox of that image and birth, the program in it, and the checks afterwards.
  Proof run(const HostileProgram& program, const std::string& digest, Birth birth);
  // Destroys the neighbour, too, and says what is left then: nothing, or a breach.
  std::string finish();

  struct Outcome {
    std::string output;    // first 64 KiB of both streams
    std::string out, err;  // of each
    uint64_t bytes = 0;
    uint64_t most_records = 0;  // of connections, in the sandbox's network, whenever the program said something
    Result<guest::Exit> exit;
    std::string end;  // why the sandbox ended; empty: it lives
  };

 private:
  struct Box {
    std::string id;
    std::string program;  // where isola-hostile is inside
    pid_t pid = 0;        // process 1, as the host sees it
    std::unique_ptr<guest::PipeClient> guest;
    size_t processes = 1;                // that it was born with
    std::vector<std::string> groups;     // where it is among the host's control groups
    std::unique_ptr<HostServices> leak;  // tests only: prove_leak.h
  };

  explicit ProveRunner(launcher::Client launcher) : launcher_(std::move(launcher)) {}
  static Result<ProveRunner> prepare(launcher::Client launcher, const std::string& binary, const Common& common,
                                     BoundaryKind kind);
  Result<Box> launch(const std::string& digest, Birth birth, const HostileProgram& program);
  Result<void> move_in_beside(const std::string& digest);
  Result<pid_t> process_of(const std::string& id);
  Company company(Box& box);
  std::vector<std::string> variables(const Box& box) const;
  std::string storage() const;  // where the files of sandboxes are, on the host
  std::optional<Proof> without_a_sandbox(const HostileProgram& program, Birth birth);
  std::string control(const HostileProgram& program);
  Outcome execute(Box& box, const HostileProgram& program, Escort& escort, std::optional<Proof>& wrong);
  std::string check_after(Box& box, const Outcome& outcome);
  std::string check_sandbox(Box& box, const HostileProgram& program, Outcome& outcome);
  std::string destroy(const Box& box);
  std::string end_of(const Box& box);
  std::string neighbour_answers();
  Result<void> await_parked(const std::string& digest);
  Result<std::string> image_for(const std::string& digest, Birth birth, const HostileProgram& program);

  launcher::Client launcher_;
  BoundaryKind kind_ = BoundaryKind::jail;
  ProvingGround* ground_ = nullptr;
  std::string others_address_;  // that the gate gave the neighbour for a name of its own
  std::string data_dir_, cache_dir_, binary_, binary_bytes_, canary_, secret_;
  std::unique_ptr<HostServices> services_;       // not on a proving ground
  std::map<std::string, std::string> controls_;  // of those who ask them, by program
  HostFacts host_facts_;                         // before the program that runs
  Box neighbour_;
  std::string neighbour_digest_;
  std::map<std::pair<std::string, Birth>, std::string> images_;  // what resumed and forked ones are made of
  std::vector<std::string> sources_;                             // of forks; they live on beside them
};

}  // namespace isola::cli
