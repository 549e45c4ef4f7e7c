// isola prove: attack the sandboxes of this machine and show that they hold.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/commands.h"
#include "cli/counted_progress.h"
#include "cli/prove_runner.h"
#include "cli/register.h"
#include "image/template_cache.h"

namespace isola::cli {

namespace {

std::string hostile_beside_this_program() {
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? static_cast<size_t>(n) : 0);
  return path.substr(0, path.rfind('/') + 1) + "isola-hostile";
}

constexpr Birth kBirths[] = {Birth::cold, Birth::pooled, Birth::resumed, Birth::forked};

// In capitals: what fails the proof.
const char* word(const Proof& proof) {
  switch (proof.verdict) {
    case Proof::Verdict::held: return "held";
    case Proof::Verdict::breach: return "BREACH";
    case Proof::Verdict::untried: return proof.excused ? "untried" : "UNTRIED";
    case Proof::Verdict::error: return "ERROR";
  }
  return "ERROR";
}

bool wanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

// Each is opened when the first program needs it, and a failure is told for every one that does.
class Runners {
 public:
  Runners(const Common& common, std::string binary, BoundaryKind kind)
      : common_(common), binary_(std::move(binary)), kind_(kind) {}
  Result<ProveRunner*> of(const HostileProgram& program) {
    auto& runner = program.outside ? outside_ : plain_;
    if (!runner) runner.emplace(program.outside ? open_outside() : ProveRunner::open(common_, binary_, kind_));
    if (!*runner) return std::unexpected(runner->error());
    return &**runner;
  }
  std::string finish() {
    std::string left;
    for (auto* runner : {&plain_, &outside_})
      if (left.empty() && *runner && **runner) left = (**runner)->finish();
    return left;
  }

 private:
  Result<ProveRunner> open_outside() {
    ISOLA_TRY(ground_, ProvingGround::open());
    return ProveRunner::open(common_, binary_, kind_, *ground_);
  }
  const Common& common_;
  std::string binary_;
  BoundaryKind kind_;
  std::unique_ptr<ProvingGround> ground_;  // before its runner: it must go after it
  std::optional<Result<ProveRunner>> plain_, outside_;
};

// For `isola prove --help`: what --program takes.
std::string programs_for_help() {
  auto programs = list_programs(hostile_beside_this_program());
  if (!programs) return "The programs cannot be listed: " + programs.error().message;
  std::map<std::string, std::string> by_class;
  for (const auto& one : *programs) by_class[one.group] += " " + one.name;
  std::string out = "Programs, by what they attack:";
  for (const auto& [group, names] : by_class) out += "\n  " + group + ":" + names;
  return out;
}

}  // namespace

int prove(const Common& common, const ProveOptions& options) {
  auto templates = image::TemplateCache(common.cache_dir).list();
  if (!templates) return complain(templates.error().message);
  if (templates->empty()) return complain("there is no template to prove: `isola template build base` makes one");
  for (const auto& birth : options.births)
    if (birth != "cold" && birth != "pooled" && birth != "resumed" && birth != "forked")
      return complain("--birth " + birth + ": cold, pooled, resumed or forked");
  auto kind = parse_boundary(options.boundary);
  if (!kind) return complain("--boundary " + options.boundary + ": jail, gvisor, uml or microvm");
  std::string binary = hostile_beside_this_program();
  auto programs = list_programs(binary);
  if (!programs) return complain(programs.error().message);
  for (const auto& name : options.programs)
    if (std::none_of(programs->begin(), programs->end(), [&](const auto& p) { return p.name == name; }))
      return complain("there is no hostile program '" + name + "'");
  Runners runners(common, binary, *kind);
  // A boundary that this machine lacks is one sentence, and not one for each program.
  auto some =
      std::find_if(programs->begin(), programs->end(), [&](const auto& p) { return wanted(options.programs, p.name); });
  if (auto first = runners.of(*some); !first && *kind != BoundaryKind::jail) return complain(first.error().message);

  std::map<Proof::Verdict, int> counts;
  int evasions = 0;     // that were held
  std::string untried;  // that should have been tried
  nlohmann::json report = nlohmann::json::array();
  // What others packed may lack what the programs need; whoever wants to know names it.
  auto is_tried = [&](const auto& one) {
    return wanted(options.templates, one.name) && (!options.templates.empty() || one.origin.empty());
  };
  const auto tried_templates = static_cast<size_t>(std::ranges::count_if(*templates, is_tried));
  const auto tried_births = static_cast<size_t>(std::ranges::count_if(
      kBirths, [&](Birth birth) { return wanted(options.births, std::string(to_string(birth))); }));
  const auto tried_programs = static_cast<size_t>(
      std::ranges::count_if(*programs, [&](const auto& p) { return wanted(options.programs, p.name); }));
  CountedProgress progress(tried_templates * tried_births * tried_programs);
  for (const auto& one : *templates) {
    if (!is_tried(one)) continue;
    for (Birth birth : kBirths) {
      std::string born(to_string(birth));
      if (!wanted(options.births, born)) continue;
      for (const auto& program : *programs) {
        if (!wanted(options.programs, program.name)) continue;
        progress.begin(program.name);
        auto runner = runners.of(program);
        if (runner && !(*runner)->offers(birth)) {
          progress.wipe();
          // Nobody here can have such a sandbox: nothing to prove, unless it was asked for.
          if (!options.births.empty())
            return complain("this machine keeps no memory of sandboxes with the boundary " + options.boundary +
                            ", so nothing is " + born);
          continue;
        }
        Proof proof =
            runner ? (*runner)->run(program, one.digest, birth) : Proof{Proof::Verdict::error, runner.error().message};
        progress.wipe();
        ++counts[proof.verdict];
        evasions += program.outside && proof.verdict == Proof::Verdict::held;
        if (proof.verdict == Proof::Verdict::untried && !proof.excused) untried += " " + program.name;
        bool quiet = proof.verdict == Proof::Verdict::held && !options.verbose;
        if (common.json)
          report.push_back({{"template", one.name},
                            {"boundary", options.boundary},
                            {"birth", born},
                            {"program", program.name},
                            {"class", program.group},
                            {"verdict", word(proof)},
                            {"how", proof.how}});
        else if (!quiet)
          std::printf("%-8s %-10s %-7s %-28s %s\n", word(proof), one.name.c_str(), born.c_str(), program.name.c_str(),
                      proof.how.c_str());
        std::fflush(stdout);
      }
    }
  }
  if (tried_templates == 0) return complain("no such template");
  std::string left = runners.finish();
  int bad = counts[Proof::Verdict::breach] + counts[Proof::Verdict::error] + !untried.empty() + !left.empty();
  if (!left.empty())
    report.push_back({{"program", "neighbour"}, {"verdict", "BREACH"}, {"how", "something is left of it: " + left}});
  if (common.json)
    std::puts(report.dump(2).c_str());
  else
    std::printf(
        "%d held (%d of them ways around the gate), %d breached, %d errors, %d could not be tried (boundary %s%s)\n",
        counts[Proof::Verdict::held], evasions, counts[Proof::Verdict::breach], counts[Proof::Verdict::error],
        counts[Proof::Verdict::untried], options.boundary.c_str(),
        *kind == BoundaryKind::jail ? ": shared kernel" : "");
  if (!untried.empty()) std::fprintf(stderr, "isola: these should have been tried and were not:%s\n", untried.c_str());
  if (!left.empty()) std::fprintf(stderr, "isola: something is left of the neighbour: %s\n", left.c_str());
  return bad == 0 ? 0 : 1;
}

void add_prove(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<ProveOptions>();
  auto* prove =
      app.add_subcommand("prove", "Attack sandboxes of this machine with the hostile programs and show that they hold");
  prove->add_option("--template", options->templates, "Only these (default: all that are built)")
      ->allow_extra_args(false);
  prove->add_option("--program", options->programs, "Only these programs")->allow_extra_args(false);
  prove->add_option("--birth", options->births, "Only these births: cold, pooled, resumed, forked")
      ->allow_extra_args(false);
  prove->add_option("--boundary", options->boundary, "Sandboxes with this boundary (default: jail)");
  prove->add_flag("--verbose,-v", options->verbose, "Print what each program found");
  prove->footer(programs_for_help);
  prove->callback([&, options] { code = isola::cli::prove(common, *options); });
}

}  // namespace isola::cli
