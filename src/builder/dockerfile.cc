#include "builder/dockerfile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>

#include "base/text_feed.h"
#include "builder/dockerfile_words.h"

namespace isola::builder {

namespace {

constexpr std::string_view kUsualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
constexpr size_t kMaxShell = 1024;          // every RUN has it
constexpr std::string_view kStandIn = "1";  // a name, a path, a port and a number

std::unexpected<Error> unsupported(const std::string& what) {
  return fail(Code::unsupported, what + " is not supported");
}

// What an instruction's variables are looked up in, and what a stage hands on to those that stand on it.
struct Scope {
  std::map<std::string, std::string, std::less<>> env = {}, args = {};
  std::vector<std::string> shell = {"/bin/sh", "-c"};
  bool unknown = false;  // what the base brings along is told later: until then, something stands for each of it
};

size_t size_of(const Scope& scope) {
  size_t out = 0;
  for (const auto* variables : {&scope.env, &scope.args})
    for (const auto& [name, value] : *variables) out += name.size() + value.size() + 64;
  return out;
}

// CMD or ENTRYPOINT.
struct Command {
  bool shell = false;
  std::string line = {};                // shell: for bash
  std::vector<std::string> words = {};  // with the shell's own
};

std::string start_of(const Command& entrypoint, const Command& command) {
  if (entrypoint.shell) return entrypoint.line;
  if (entrypoint.words.empty() && command.shell) return command.line;
  auto words = entrypoint.words;
  words.insert(words.end(), command.words.begin(), command.words.end());
  return bash_line(words);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<uint16_t> port_of(std::string_view text) {
  uint16_t port = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (bad != std::errc() || end != text.data() + text.size() || port == 0)
    return fail(Code::invalid, shown(text) + " is not a port (1 to 65535)");
  return port;
}

bool is_remote(std::string_view source) {
  constexpr auto kBegins = std::to_array<std::string_view>({"http://", "https://", "git://", "ssh://", "git@"});
  std::string small = lower(source.substr(0, 16));
  return std::any_of(kBegins.begin(), kBegins.end(), [&](auto begin) { return small.starts_with(begin); });
}

constexpr size_t kMaxHeredocFile = 96 << 10;  // it becomes one word of a command

Result<std::string> source_of(std::string_view path) {
  if (path.empty()) return fail(Code::invalid, "a source is empty");
  if (is_remote(path)) return unsupported(shown(path) + ": a source on the network (use RUN curl or RUN git clone)");
  auto clean = clean_path(path, Leaving::refused);
  if (!clean) return fail(Code::invalid, "the source " + shown(path) + " leaves the context");
  return clean->empty() ? "." : *clean;
}

Result<std::string> stage_name(std::string_view word) {
  std::string name = lower(word);
  bool known = name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_.") == std::string::npos;
  if (name.empty() || !known || name[0] < 'a')
    return fail(Code::invalid,
                shown(word) + " is not a name for a stage (a letter, then letters, digits, '-', '_', '.')");
  return name;
}

class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, std::string>& arguments, const BaseVariables& variables)
      : reader_(text), arguments_(arguments), variables_(variables) {}
  Result<Dockerfile> parse(const std::string& target);

 private:
  struct Known {
    std::string_view name;
    Result<void> (Parser::*take)(const Instruction&);
  };
  static const std::array<Known, 18> kKnown;

  Result<void> take(const Instruction& in);
  Result<void> take_from(const Instruction& in);
  Result<void> take_arg(const Instruction& in);
  Result<void> take_env(const Instruction& in);
  Result<void> take_run(const Instruction& in);
  Result<void> take_copy(const Instruction& in);
  Result<void> take_workdir(const Instruction& in);
  Result<void> take_user(const Instruction& in);
  Result<void> take_expose(const Instruction& in);
  Result<void> take_shell(const Instruction& in);
  Result<void> take_start(const Instruction& in);
  Result<void> take_silently(const Instruction& in);
  Result<void> take_as_note(const Instruction& in);

  Result<void> copy_flag(const Instruction& in, const Flag& flag, Step& step);
  Result<void> run_flag(const Instruction& in, const Flag& flag);
  std::string run_body(const Instruction& in, std::string_view rest);
  Result<std::string> exported_arguments();
  Result<void> expose(std::string_view word, const Instruction& in);

  Scope& scope() { return scopes_.back(); }
  Stage& stage() { return out_.stages.back(); }
  Step& add_step(Step::Kind kind, const Instruction& in) {
    return stage().steps.emplace_back(Step{.kind = kind, .line = in.line, .number = static_cast<uint32_t>(in.number)});
  }
  void note(const Instruction& in, const std::string& what) {
    std::string text = "line " + std::to_string(in.number) + ": " + what;
    if (out_.ignored.empty() || out_.ignored.back() != text) out_.ignored.push_back(std::move(text));
  }
  void finish_stage();
  Result<std::string> filled(std::string_view raw, const Instruction& in, bool a_word = true);
  Result<void> write_heredoc(const Instruction& in, const Heredoc& heredoc, const Step& copy);
  Result<void> set_argument(std::string_view word, const Instruction& in);
  std::optional<size_t> earlier_stage(const std::string& name, size_t before) const;
  Result<std::string> stage_reference(const std::string& name, size_t before) const;
  Result<void> check_arguments() const;
  Result<void> cut_to(const std::string& target);

  LineReader reader_;
  const std::map<std::string, std::string>& arguments_;
  const BaseVariables& variables_;
  Budget budget_;
  Dockerfile out_;
  Scope global_;               // before the first FROM
  std::vector<Scope> scopes_;  // as many as there are stages
  std::map<std::string, size_t> names_;
  std::set<std::string, std::less<>> declared_;
  // Of the stage that is being read.
  std::string folder_;  // empty: not known
  Command command_, entrypoint_;
  std::set<uint16_t> ports_;
};

const std::array<Parser::Known, 18> Parser::kKnown = {{
    {"FROM", &Parser::take_from},
    {"ARG", &Parser::take_arg},
    {"RUN", &Parser::take_run},
    {"COPY", &Parser::take_copy},
    {"ADD", &Parser::take_copy},
    {"ENV", &Parser::take_env},
    {"WORKDIR", &Parser::take_workdir},
    {"USER", &Parser::take_user},
    {"CMD", &Parser::take_start},
    {"ENTRYPOINT", &Parser::take_start},
    {"EXPOSE", &Parser::take_expose},
    {"SHELL", &Parser::take_shell},
    {"LABEL", &Parser::take_silently},
    {"MAINTAINER", &Parser::take_silently},
    {"STOPSIGNAL", &Parser::take_as_note},
    {"HEALTHCHECK", &Parser::take_as_note},
    {"VOLUME", &Parser::take_as_note},
    {"ONBUILD", &Parser::take_as_note},
}};

Result<Dockerfile> Parser::parse(const std::string& target) {
  ISOLA_CHECK(reader_.read_directives());
  for (;;) {
    ISOLA_TRY(auto in, reader_.next());
    if (!in) break;
    if (auto taken = take(*in); !taken) return at_line(in->number, taken.error());
  }
  if (out_.stages.empty()) return fail(Code::invalid, "the Dockerfile has no FROM");
  finish_stage();
  ISOLA_CHECK(check_arguments());
  ISOLA_CHECK(cut_to(target));
  return std::move(out_);
}

Result<void> Parser::take(const Instruction& in) {
  auto known = std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& one) { return one.name == in.name; });
  if (known == kKnown.end()) {
    std::vector<std::string_view> names(kKnown.size());
    std::transform(kKnown.begin(), kKnown.end(), names.begin(), [](const Known& one) { return one.name; });
    auto meant = nearest(in.name, names);
    return fail(Code::invalid, "unknown instruction " + shown(in.word) +
                                   (meant.empty() ? "" : " (did you mean " + std::string(meant) + "?)"));
  }
  if (out_.stages.empty() && in.name != "FROM" && in.name != "ARG")
    return fail(Code::invalid, in.name + " stands before the first FROM");
  if (in.rest.empty()) return fail(Code::invalid, in.name + " has nothing after it");
  return (this->*known->take)(in);
}

// ENV wins over ARG. Before the first FROM, and in FROM itself, there are only the ARGs from there.
Result<std::string> Parser::filled(std::string_view raw, const Instruction& in, bool a_word) {
  const Scope& from = out_.stages.empty() || in.name == "FROM" ? global_ : scope();
  auto look = [&](std::string_view name) -> std::optional<std::string_view> {
    for (const auto* variables : {&from.env, &from.args})
      if (auto found = variables->find(name); found != variables->end()) return found->second;
    if (from.unknown) return kStandIn;
    if (name != "PATH" || &from == &global_) return std::nullopt;
    note(in, "the base's own PATH is not known here, the usual one stands for it");
    return kUsualPath;
  };
  return a_word ? fill_in(raw, reader_.escape(), look, budget_) : fill_in_text(raw, reader_.escape(), look, budget_);
}

std::optional<size_t> Parser::earlier_stage(const std::string& name, size_t before) const {
  if (auto found = names_.find(lower(name)); found != names_.end() && found->second < before) return found->second;
  size_t number = before;
  if (is_number(name)) std::from_chars(name.data(), name.data() + name.size(), number);
  return number < before ? std::optional(number) : std::nullopt;
}

// The name as Stage::name has it, so that nobody else needs to know that capitals do not count.
Result<std::string> Parser::stage_reference(const std::string& name, size_t before) const {
  auto earlier = earlier_stage(name, before);
  if (!is_number(name)) return earlier ? lower(name) : name;
  if (!earlier) return fail(Code::invalid, "there is no earlier stage " + shown(name));
  return std::to_string(*earlier);
}

void Parser::finish_stage() {
  stage().start = start_of(entrypoint_, command_);
  stage().ports.assign(ports_.begin(), ports_.end());
}

Result<void> Parser::take_from(const Instruction& in) {
  std::string_view rest = in.rest;
  ISOLA_TRY(auto flags, take_flags(rest, reader_.escape()));
  for (const auto& flag : flags) {
    if (flag.name != "platform") return unsupported("FROM --" + clipped(flag.name, 40));
    note(in, "FROM --platform has no meaning here");
  }
  ISOLA_TRY(auto words, split_words(rest, reader_.escape()));
  if (words.size() != 1 && (words.size() != 3 || lower(words[1]) != "as"))
    return fail(Code::invalid, "write: FROM IMAGE [AS NAME]");
  ISOLA_TRY(std::string from, filled(words[0], in));
  if (from.empty()) return fail(Code::invalid, "the name after FROM is empty once its ARGs are filled in");
  if (from == "scratch")
    return fail(Code::invalid, "FROM scratch has nothing to run the steps with: a template or an image is needed");
  size_t index = out_.stages.size();
  ISOLA_TRY(from, stage_reference(from, index));
  std::string name;
  if (words.size() == 3) {
    ISOLA_TRY(name, stage_name(words[2]));
    if (!names_.emplace(name, index).second)
      return fail(Code::invalid, "there are two stages with the name " + shown(name));
  }
  Scope inherited;
  if (auto base = earlier_stage(from, index)) {
    ISOLA_CHECK(budget_.spend(size_of(scopes_[*base])));
    inherited = scopes_[*base];
  } else if (variables_) {
    auto known = variables_(from);
    inherited.unknown = !known;
    if (known) inherited.env.insert(known->begin(), known->end());
    ISOLA_CHECK(budget_.spend(size_of(inherited)));
  }
  if (index > 0) finish_stage();
  scopes_.push_back(std::move(inherited));
  out_.stages.push_back({.name = std::move(name), .from = std::move(from)});
  folder_.clear();
  command_ = entrypoint_ = {};
  ports_.clear();
  return {};
}

Result<void> Parser::take_arg(const Instruction& in) {
  ISOLA_TRY(auto words, split_words(in.rest, reader_.escape()));
  for (auto word : words) ISOLA_CHECK(set_argument(word, in));
  return {};
}

Result<void> Parser::set_argument(std::string_view word, const Instruction& in) {
  size_t equals = word.find('=');
  std::string name(word.substr(0, equals));
  if (!is_variable_name(name)) return fail(Code::invalid, shown(name) + " is not a name for an ARG");
  declared_.insert(name);
  auto& args = out_.stages.empty() ? global_.args : scope().args;
  if (auto given = arguments_.find(name); given != arguments_.end()) {
    ISOLA_CHECK(budget_.spend(given->second.size()));
    args[name] = given->second;
  } else if (equals != std::string_view::npos) {
    ISOLA_TRY(args[name], filled(word.substr(equals + 1), in));
  } else if (auto outer = global_.args.find(name); outer != global_.args.end() && !out_.stages.empty()) {
    ISOLA_CHECK(budget_.spend(outer->second.size()));
    args[name] = outer->second;
  }
  return {};
}

Result<void> Parser::take_env(const Instruction& in) {
  ISOLA_TRY(auto words, split_words(in.rest, reader_.escape()));
  std::vector<std::pair<std::string, std::string>> env;
  auto add = [&](std::string_view raw_name, std::string_view raw_value) -> Result<void> {
    ISOLA_TRY(std::string name, filled(raw_name, in));
    ISOLA_TRY(std::string value, filled(raw_value, in));
    if (name.empty() || name.find('=') != std::string::npos)
      return fail(Code::invalid, shown(raw_name) + " is not a name for a variable");
    env.emplace_back(std::move(name), std::move(value));
    return {};
  };
  if (words[0].find('=') == std::string_view::npos) {  // the old form: a name, and all the rest is its value
    if (words.size() == 1) return fail(Code::invalid, "write: ENV NAME=value …");
    ISOLA_CHECK(add(words[0], trimmed(std::string_view(in.rest).substr(words[0].size()))));
  } else {
    for (auto word : words) {
      size_t equals = word.find('=');
      if (equals == std::string_view::npos) return fail(Code::invalid, "a '=' is missing in " + shown(word));
      ISOLA_CHECK(add(word.substr(0, equals), word.substr(equals + 1)));
    }
  }
  // Only now: within one ENV, every value sees what was before it.
  for (const auto& [name, value] : env) {
    ISOLA_CHECK(budget_.spend(value.size()));
    scope().env[name] = value;
  }
  add_step(Step::Kind::env, in).env = std::move(env);
  return {};
}

Result<void> Parser::run_flag(const Instruction& in, const Flag& flag) {
  std::string written = "RUN --" + clipped(flag.name, 40);
  ISOLA_TRY(std::string value, filled(flag.value, in));
  if (flag.name == "mount") {
    std::string_view type = "bind";  // as Docker has it where none is named
    for (std::string_view rest = value; !rest.empty();) {
      auto field = rest.substr(0, rest.find(','));
      rest.remove_prefix(std::min(field.size() + 1, rest.size()));
      if (field.starts_with("type=")) type = field.substr(5);
    }
    if (type != "cache") return unsupported(written + "=type=" + clipped(type, 40));
    note(in, written + "=type=cache has no meaning here");
    return {};
  }
  bool usual = (flag.name == "network" && value == "default") || (flag.name == "security" && value == "sandbox");
  written += "=" + clipped(value, 40);
  if (!usual) return unsupported(written);
  note(in, written + " has no meaning here");
  return {};
}

// As Docker shows them to a RUN: as variables, unless an ENV has the name.
Result<std::string> Parser::exported_arguments() {
  std::string out;
  for (const auto& [name, value] : scope().args) {
    ISOLA_CHECK(budget_.spend(name.size() + value.size() + 16));
    if (!scope().env.contains(name)) out += "export " + name + "=" + single_quoted(value) + "; ";
  }
  return out;
}

std::string Parser::run_body(const Instruction& in, std::string_view rest) {
  if (in.heredocs.empty()) {
    if (auto words = json_words(rest)) return bash_line(*words);
    return in_shell(scope().shell, std::string(rest));
  }
  if (auto bare = heredoc_of(rest); bare && bare->whole) {
    std::string script = in.heredocs[0].body;
    if (script.starts_with("#!")) return as_file(script);
    if (script.ends_with('\n')) script.pop_back();
    return script.empty() ? script : in_shell(scope().shell, script);
  }
  std::string text(rest);
  for (const auto& heredoc : in.heredocs) text += "\n" + heredoc.body + heredoc.delimiter;
  return in_shell(scope().shell, text);
}

Result<void> Parser::take_run(const Instruction& in) {
  std::string_view rest = in.rest;
  ISOLA_TRY(auto flags, take_flags(rest, reader_.escape()));
  for (const auto& flag : flags) ISOLA_CHECK(run_flag(in, flag));
  std::string body = run_body(in, rest);
  if (rest.empty() || body.empty()) return fail(Code::invalid, "RUN has no command");
  ISOLA_TRY(std::string command, exported_arguments());
  add_step(Step::Kind::run, in).command = command + body;
  return {};
}

Result<void> Parser::copy_flag(const Instruction& in, const Flag& flag, Step& step) {
  if (flag.name == "link") return {};  // says how, not what
  ISOLA_TRY(std::string value, filled(flag.value, in));
  if (flag.name == "chown") {
    step.owner = value;
  } else if (flag.name == "chmod") {
    bool octal = value.find_first_not_of("01234567") == std::string::npos && value.size() <= 4;
    if (!octal) return unsupported(in.name + " --chmod=" + clipped(value, 40) + ", which is not an octal number,");
    step.mode = value;
  } else if (flag.name == "from") {
    if (in.name == "ADD") return unsupported("ADD --from");
    if (value.empty()) return fail(Code::invalid, "--from names no stage");
    ISOLA_TRY(step.stage, stage_reference(value, out_.stages.size() - 1));
  } else {
    return unsupported(in.name + " --" + clipped(flag.name, 40));
  }
  return {};
}

// A file that stands in the Dockerfile itself: written by a step of its own, as root.
Result<void> Parser::write_heredoc(const Instruction& in, const Heredoc& heredoc, const Step& copy) {
  if (heredoc.delimiter.find('/') != std::string::npos || heredoc.delimiter == "." || heredoc.delimiter == "..")
    return fail(Code::invalid, shown(heredoc.delimiter) + " is no name of a file");
  std::string body = heredoc.body;
  if (!heredoc.quoted) {
    ISOLA_TRY(body, filled(heredoc.body, in, false));
  }
  if (body.size() > kMaxHeredocFile)
    return fail(Code::invalid,
                in.name + ": a here-document has at most 96 KiB; larger files are copied from the context");
  const std::string name = single_quoted(heredoc.delimiter);
  const bool into = copy.target.ends_with('/');
  std::string command = "isola_file=" + single_quoted(copy.target) + (into ? name : "") + "; ";
  if (!into) command += "[ ! -d \"$isola_file\" ] || isola_file=\"$isola_file\"/" + name + "; ";
  command += "mkdir -p -- \"$(dirname -- \"$isola_file\")\" && printf %s " + single_quoted(body) +
             " >\"$isola_file\" && chown -- " + single_quoted(copy.owner.empty() ? "0:0" : copy.owner) +
             " \"$isola_file\" && chmod -- " + (copy.mode.empty() ? "0644" : copy.mode) + " \"$isola_file\"";
  Step& step = add_step(Step::Kind::run, in);
  step.command = std::move(command);
  step.run_as = "root";
  return {};
}

Result<void> Parser::take_copy(const Instruction& in) {
  std::string_view rest = in.rest;
  ISOLA_TRY(auto flags, take_flags(rest, reader_.escape()));
  Step step = {.kind = Step::Kind::copy, .line = in.line, .number = static_cast<uint32_t>(in.number)};
  step.unpack = in.name == "ADD";
  for (const auto& flag : flags) ISOLA_CHECK(copy_flag(in, flag, step));
  std::vector<std::string> words;
  if (auto list = json_words(rest)) {
    words = std::move(*list);
  } else {
    ISOLA_TRY(auto parts, split_words(rest, reader_.escape()));
    words.assign(parts.begin(), parts.end());
  }
  if (words.size() < 2) return fail(Code::invalid, in.name + " needs a source and a target");
  // Sources that are here-documents, in their order; the bodies of others would be nobody's.
  size_t written = 0;
  for (size_t i = 0; i < words.size(); ++i)
    if (auto one = heredoc_of(words[i]); one && !in.heredocs.empty()) {
      if (!one->whole || i + 1 == words.size()) return fail(Code::invalid, "write: " + in.name + " <<NAME TARGET");
      ++written;
    }
  if (written != in.heredocs.size()) return fail(Code::invalid, "write: " + in.name + " <<NAME TARGET");
  std::vector<std::string> plain;
  for (auto& word : words) {
    if (written > 0 && heredoc_of(word)) continue;
    ISOLA_TRY(word, filled(word, in));
    plain.push_back(std::move(word));
  }
  words = std::move(plain);
  step.target = std::move(words.back());
  words.pop_back();
  if (step.target.empty()) return fail(Code::invalid, "the target of " + in.name + " is empty");
  if (step.target == ".") step.target = "./";  // Docker takes both for a folder
  if (words.size() + written > 1 && !step.target.ends_with('/'))
    return fail(Code::invalid, in.name + " of several sources needs a target that ends with '/'");
  for (const auto& word : words) {
    ISOLA_TRY(std::string source, source_of(word));
    step.sources.push_back(std::move(source));
  }
  const Step meant = step;
  if (!step.sources.empty()) stage().steps.push_back(std::move(step));
  for (const auto& heredoc : in.heredocs) ISOLA_CHECK(write_heredoc(in, heredoc, meant));
  return {};
}

Result<void> Parser::take_workdir(const Instruction& in) {
  ISOLA_TRY(std::string path, filled(in.rest, in));
  if (path.empty()) return fail(Code::invalid, "WORKDIR is empty once its variables are filled in");
  if (path.starts_with('/'))
    folder_ = "/" + *clean_path(path, Leaving::stays);
  else if (!folder_.empty())
    folder_ = "/" + *clean_path(folder_ + "/" + path, Leaving::stays);
  ISOLA_CHECK(budget_.spend(folder_.size()));
  // Below a folder that only the base knows, each path goes on from the step before it.
  add_step(Step::Kind::workdir, in).value = folder_.empty() ? path : folder_;
  return {};
}

Result<void> Parser::take_user(const Instruction& in) {
  ISOLA_TRY(auto words, split_words(in.rest, reader_.escape()));
  if (words.size() != 1) return fail(Code::invalid, "write: USER NAME[:GROUP]");
  ISOLA_TRY(std::string user, filled(words[0], in));
  if (user.empty()) return fail(Code::invalid, "USER is empty once its variables are filled in");
  add_step(Step::Kind::user, in).value = std::move(user);
  return {};
}

Result<void> Parser::expose(std::string_view word, const Instruction& in) {
  size_t slash = std::min(word.find('/'), word.size());
  auto ports = word.substr(0, slash), protocol = word.substr(slash);
  size_t dash = ports.find('-');
  ISOLA_TRY(uint16_t first, port_of(ports.substr(0, dash)));
  uint16_t last = first;
  if (dash != std::string_view::npos) {
    ISOLA_TRY(last, port_of(ports.substr(dash + 1)));
  }
  if (last < first) return fail(Code::invalid, "a range of ports runs backwards: " + shown(word));
  if (!protocol.empty() && lower(protocol) != "/tcp") {
    note(in, "EXPOSE " + clipped(word, 40) + " has no meaning here");
    return {};
  }
  ISOLA_CHECK(budget_.spend((last - first + size_t{1}) * 4));
  for (uint32_t port = first; port <= last; ++port) ports_.insert(static_cast<uint16_t>(port));
  return {};
}

Result<void> Parser::take_expose(const Instruction& in) {
  ISOLA_TRY(std::string ports, filled(in.rest, in));
  ISOLA_TRY(auto words, split_words(ports, reader_.escape()));
  for (auto word : words) ISOLA_CHECK(expose(word, in));
  return {};
}

Result<void> Parser::take_shell(const Instruction& in) {
  auto words = json_words(in.rest);
  if (!words || words->size() < 2) return fail(Code::invalid, "write: SHELL [\"/bin/bash\", \"-c\"]");
  auto program = std::string_view(words->front());
  program.remove_prefix(program.rfind('/') + 1);
  if (program != "bash" && program != "sh") return unsupported("the SHELL " + shown(words->front()));
  if (in.rest.size() > kMaxShell) return fail(Code::invalid, "a SHELL has at most 1024 bytes");
  scope().shell = std::move(*words);
  return {};
}

Result<void> Parser::take_start(const Instruction& in) {
  Command& to = in.name == "CMD" ? command_ : entrypoint_;
  if (auto words = json_words(in.rest)) {
    to = {.words = std::move(*words)};
    return {};
  }
  to = {.shell = true, .line = in_shell(scope().shell, in.rest), .words = scope().shell};
  to.words.push_back(in.rest);
  return {};
}

Result<void> Parser::take_silently(const Instruction& in) {
  if (in.name == "LABEL") ISOLA_CHECK(split_words(in.rest, reader_.escape()));
  return {};
}

Result<void> Parser::take_as_note(const Instruction& in) {
  note(in, in.name + " has no meaning here");
  return {};
}

Result<void> Parser::check_arguments() const {
  std::string missing;
  for (const auto& [name, value] : arguments_) {
    if (declared_.contains(name) || missing.size() > kMaxShown) continue;
    missing += (missing.empty() ? "" : ", ") + shown(name);
  }
  if (missing.empty()) return {};
  return fail(Code::invalid, "the Dockerfile declares no ARG for " + missing);
}

Result<void> Parser::cut_to(const std::string& target) {
  if (target.empty()) return {};
  if (auto wanted = earlier_stage(target, out_.stages.size())) {
    out_.stages.resize(*wanted + 1);
    return {};
  }
  std::string there;
  for (size_t i = 0; i < out_.stages.size() && there.size() < kMaxShown; ++i) {
    const auto& name = out_.stages[i].name;
    there += (there.empty() ? "" : ", ") + (name.empty() ? std::to_string(i) : name);
  }
  return fail(Code::not_found, "the Dockerfile has no stage " + shown(target) + ", only " + clipped(there, kMaxShown));
}

Result<void> check_text(std::string_view text) {
  if (text.size() > kMaxDockerfile) return fail(Code::invalid, "the Dockerfile is larger than 1 MiB");
  auto ends = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  if (ends + (text.empty() || text.ends_with('\n') ? 0 : 1) > kMaxDockerfileLines)
    return fail(Code::invalid, "the Dockerfile has more than 10,000 lines");
  if (text.find('\0') != std::string_view::npos) return fail(Code::invalid, "the Dockerfile holds a NUL byte");
  TextFeed feed;
  std::string again = feed.feed(text);
  again += feed.finish();
  if (again != text) return fail(Code::invalid, "the Dockerfile is not text in UTF-8");
  return {};
}

}  // namespace

Result<Dockerfile> parse_dockerfile(std::string_view text, const std::map<std::string, std::string>& arguments,
                                    const std::string& target, const BaseVariables& variables) {
  ISOLA_CHECK(check_text(text));
  for (const auto& [name, value] : arguments)
    if (value.find('\0') != std::string::npos)
      return fail(Code::invalid, "the build argument " + shown(name) + " holds a NUL byte");
  return Parser(text, arguments, variables).parse(target);
}

}  // namespace isola::builder
