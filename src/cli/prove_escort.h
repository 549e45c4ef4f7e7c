// Some hostile programs prove something only in company: a neighbour that holds what they look for, one that asks for
// its own share while they take all they can get, file calls from outside while they swap folders, a look at what they
// left lying about. This is the company, by the program's name (docs/hostile.md, "Runs with a check of their own").
//
//   Escort escort(program, company);
//   ISOLA_CHECK(escort.before());
//   auto run = company.guest.begin_run(…escort.arguments()…);
//   wrong = escort.during(*run, outcome);      // or nullopt; whatever is wrong decides over the program's own word
//   … finish …
//   wrong = escort.after(outcome);
//   wrong = escort.end();                      // lets the neighbour go
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/prove_runner.h"
#include "guest/client.h"

namespace isola::cli {

// The folder that an absolute path is in.
inline std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

struct Company {
  guest::PipeClient& guest;                // of the sandbox that is attacked from within
  guest::PipeClient& neighbour;            // of the one beside it
  std::string program, neighbour_program;  // where isola-hostile is in each
  std::vector<std::string> env;            // of the program
  std::string canary, secret;
};

inline constexpr char kRacePath[] = "/tmp/isola-race";

class Escort {
 public:
  Escort(const HostileProgram& program, Company company) : name_(program.name), with_(std::move(company)) {
    floods_ = program.expect == "floods";
  }
  using Wrong = std::optional<Proof>;

  std::vector<std::string> arguments() const;  // further words for the program
  Result<void> before();
  // While it runs; comes back when it has ended or nothing more is to be done.
  Wrong during(const guest::Run& run, const ProveRunner::Outcome& outcome);
  Wrong after(const ProveRunner::Outcome& outcome);
  Wrong end();

 private:
  Wrong race(const guest::Run& run);
  Wrong share(const guest::Run& run, const ProveRunner::Outcome& outcome);
  Wrong answer_meanwhile(const guest::Run& run, const ProveRunner::Outcome& outcome);
  Wrong compare_frames(const ProveRunner::Outcome& outcome) const;
  Wrong start_shebang();
  Wrong look_at_daemon();
  Wrong look_at_files();
  Wrong look_at_giant(const ProveRunner::Outcome& outcome);
  Wrong breach_if_secret(const std::string& seen) const;
  bool holds() const;  // takes all it can get and keeps it for a while

  std::string name_;
  Company with_;
  bool floods_ = false, asked_ = false;
  uint64_t memory_before_ = 0;
  std::shared_ptr<guest::Run> holder_;  // in the neighbour
};

}  // namespace isola::cli
