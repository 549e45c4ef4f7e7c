// isola prove: attack the sandboxes of this machine and show that they hold.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
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

const char* word(Proof::Verdict verdict) {
  switch (verdict) {
    case Proof::Verdict::held: return "held";
    case Proof::Verdict::breach: return "BREACH";
    case Proof::Verdict::untried: return "untried";
    case Proof::Verdict::error: return "ERROR";
  }
  return "ERROR";
}

bool wanted(const std::vector<std::string>& names, const std::string& name) {
  return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

int prove(const Common& common, const ProveOptions& options) {
  auto templates = image::TemplateCache(common.cache_dir).list();
  if (!templates) return complain(templates.error().message);
  if (templates->empty()) return complain("there is no template to prove: `isola template build base` makes one");
  for (const auto& birth : options.births)
    if (birth != "cold" && birth != "pooled") return complain("--birth " + birth + ": cold or pooled");
  auto runner = ProveRunner::open(common, hostile_beside_this_program());
  if (!runner) return complain(runner.error().message);
  for (const auto& name : options.programs)
    if (std::none_of(runner->programs().begin(), runner->programs().end(),
                     [&](const auto& p) { return p.name == name; }))
      return complain("there is no hostile program '" + name + "'");

  std::map<Proof::Verdict, int> counts;
  nlohmann::json report = nlohmann::json::array();
  int tried_templates = 0;
  for (const auto& one : *templates) {
    if (!wanted(options.templates, one.name)) continue;
    ++tried_templates;
    for (Birth birth : {Birth::cold, Birth::pooled}) {
      std::string born(to_string(birth));
      if (!wanted(options.births, born)) continue;
      for (const auto& program : runner->programs()) {
        if (!wanted(options.programs, program.name)) continue;
        Proof proof = runner->run(program, one.digest, birth);
        ++counts[proof.verdict];
        bool quiet = proof.verdict == Proof::Verdict::held && !options.verbose;
        if (common.json)
          report.push_back({{"template", one.name},
                            {"boundary", "jail"},
                            {"birth", born},
                            {"program", program.name},
                            {"verdict", word(proof.verdict)},
                            {"how", proof.how}});
        else if (!quiet)
          std::printf("%-8s %-10s %-7s %-28s %s\n", word(proof.verdict), one.name.c_str(), born.c_str(),
                      program.name.c_str(), proof.how.c_str());
        std::fflush(stdout);
      }
    }
  }
  if (tried_templates == 0) return complain("no such template");
  int bad = counts[Proof::Verdict::breach] + counts[Proof::Verdict::error];
  if (common.json)
    std::puts(report.dump(2).c_str());
  else
    std::printf("%d held, %d breached, %d errors, %d could not be tried (boundary jail: shared kernel)\n",
                counts[Proof::Verdict::held], counts[Proof::Verdict::breach], counts[Proof::Verdict::error],
                counts[Proof::Verdict::untried]);
  return bad == 0 ? 0 : 1;
}

void add_prove(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<ProveOptions>();
  auto* prove =
      app.add_subcommand("prove", "Attack sandboxes of this machine with the hostile programs and show that they hold");
  prove->add_option("--template", options->templates, "Only these (default: all that are built)")
      ->allow_extra_args(false);
  prove->add_option("--program", options->programs, "Only these programs")->allow_extra_args(false);
  prove->add_option("--birth", options->births, "Only these births: cold, pooled")->allow_extra_args(false);
  prove->add_flag("--verbose,-v", options->verbose, "Print what each program found");
  prove->callback([&, options] { code = isola::cli::prove(common, *options); });
}

}  // namespace isola::cli
