#include "builder/dockerfile.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "builder/dockerfile_words.h"

namespace isola::builder {
namespace {

using Arguments = std::map<std::string, std::string>;
using Texts = std::vector<std::string>;

Dockerfile parsed(std::string_view text, const Arguments& arguments = {}, const std::string& target = {}) {
  auto read = parse_dockerfile(text, arguments, target);
  EXPECT_TRUE(read) << read.error().message << "\n" << text;
  return read ? *read : Dockerfile{.stages = {Stage()}};
}
std::string error_of(std::string_view text, const Arguments& arguments = {}, const std::string& target = {}) {
  auto read = parse_dockerfile(text, arguments, target);
  EXPECT_FALSE(read) << text;
  return read ? "" : read.error().message;
}
Stage last(std::string_view text, const Arguments& arguments = {}) { return parsed(text, arguments).stages.back(); }
// The only step below a FROM.
Step step(const std::string& text) {
  auto steps = last("FROM base\n" + text).steps;
  EXPECT_EQ(steps.size(), 1u) << text;
  return steps.empty() ? Step() : steps[0];
}
std::string command(const std::string& text) { return step(text).command; }
std::string start(const std::string& text) { return last("FROM base\n" + text).start; }
bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// What bash makes of a command: a test of what the text means, not of how it is written.
std::string run_in_bash(const std::string& line) {
  std::string whole = "bash -c " + single_quoted(line) + " 2>&1", out;
  FILE* pipe = ::popen(whole.c_str(), "r");
  if (!pipe) return "popen failed";
  char piece[256];
  while (size_t n = std::fread(piece, 1, sizeof piece, pipe)) out.append(piece, n);
  ::pclose(pipe);
  return out;
}

TEST(Dockerfile, AWholeOne) {
  auto file = parsed(
      "# syntax=docker/dockerfile:1\n"
      "ARG VERSION=3.11\n"
      "FROM python:${VERSION} AS Builder\n"
      "WORKDIR /app\n"
      "COPY requirements.txt .\n"
      "RUN pip install -r requirements.txt\n"
      "\n"
      "FROM python:${VERSION}\n"
      "COPY --from=builder /app /app\n"
      "ENV PORT=8000\n"
      "USER nobody\n"
      "EXPOSE $PORT\n"
      "CMD [\"python\", \"-m\", \"http.server\"]\n");
  ASSERT_EQ(file.stages.size(), 2u);
  EXPECT_EQ(file.stages[0].name, "builder");
  EXPECT_EQ(file.stages[0].from, "python:3.11");
  ASSERT_EQ(file.stages[0].steps.size(), 3u);
  EXPECT_EQ(file.stages[0].steps[0].value, "/app");
  EXPECT_EQ(file.stages[0].steps[1].target, "./");
  EXPECT_EQ(file.stages[0].steps[2].command, "pip install -r requirements.txt");
  EXPECT_EQ(file.stages[0].steps[2].line, "RUN pip install -r requirements.txt");
  const auto& result = file.stages[1];
  ASSERT_EQ(result.steps.size(), 3u);
  EXPECT_EQ(result.steps[0].kind, Step::Kind::copy);
  EXPECT_EQ(result.steps[0].stage, "builder");
  EXPECT_EQ(result.steps[0].sources, Texts{"app"});
  EXPECT_EQ(result.steps[1].kind, Step::Kind::env);
  EXPECT_EQ(result.steps[2].kind, Step::Kind::user);
  EXPECT_EQ(result.steps[2].value, "nobody");
  EXPECT_EQ(result.ports, std::vector<uint16_t>{8000});
  EXPECT_EQ(result.start, "python -m http.server");
  EXPECT_TRUE(file.ignored.empty());
}

TEST(DockerfileLines, GoOnAfterAnEscape) {
  EXPECT_EQ(command("RUN a \\\n  && b\\\nc"), "a   && bc");
  EXPECT_EQ(command("RUN a \\  \n b"), "a  b");
  EXPECT_EQ(command("RUN a \\\n# a comment\n   # another\n b"), "a  b");
  EXPECT_EQ(command("RUN a \\\n\n   \n b"), "a  b");
  EXPECT_EQ(command("RUN a \\"), "a");
  EXPECT_EQ(command("\\\nRUN a"), "a");
  auto steps = last("FROM x\nRUN a\\\\\nRUN b").steps;
  ASSERT_EQ(steps.size(), 2u) << "two escapes are a character";
  EXPECT_EQ(steps[0].command, "a\\\\");
}

TEST(DockerfileLines, EndsBomsCommentsAndCase) {
  auto stage = last("\xef\xbb\xbf# first\r\n\r\n  from x as y\r\n\trun a \\\r\n  b\r\n # c\r\nEnv k=v\r\n");
  EXPECT_EQ(stage.from, "x");
  EXPECT_EQ(stage.name, "y");
  ASSERT_EQ(stage.steps.size(), 2u);
  EXPECT_EQ(stage.steps[0].command, "a   b");
  EXPECT_EQ(stage.steps[0].line, "run a b");
  EXPECT_EQ(stage.steps[1].env[0].second, "v");
  EXPECT_EQ(command("RUN echo # no comment"), "echo # no comment");
}

TEST(DockerfileLines, DirectivesStandAtTheTop) {
  EXPECT_EQ(last("# escape=`\nFROM x\nRUN a `\n b\\\nWORKDIR /c:\\d").steps.size(), 2u);
  EXPECT_EQ(last("#Syntax = y\n# ESCAPE = ` \nFROM x\nRUN a`\nb").steps[0].command, "ab");
  EXPECT_EQ(last("# comment\n# escape=`\nFROM x\nRUN a`\nRUN b").steps.size(), 2u) << "too late";
  EXPECT_EQ(last("\n# escape=`\nFROM x\nRUN a`\nRUN b").steps.size(), 2u) << "too late";
  EXPECT_TRUE(error_of("# escape=x\nFROM x").starts_with("Dockerfile line 1: the escape character"));
}

TEST(DockerfileLines, TheLogShowsOneLine) {
  EXPECT_EQ(step("RUN  apt-get update \\\n   && apt-get install \\\n   a").line,
            "RUN  apt-get update && apt-get install a");
  EXPECT_EQ(step("RUN a\\\nb").line, "RUN ab");
  EXPECT_EQ(step("RUN <<EOF\necho a\n\techo b\nEOF").line, "RUN <<EOF echo a echo b EOF");
  auto line = step("RUN " + std::string(400, 'a') + std::string(100, ' ') + "\xc3\xa4\xc3\xa4").line;
  EXPECT_LE(line.size(), 500u);
  EXPECT_TRUE(line.ends_with("…"));
  std::string umlauts;
  for (int i = 0; i < 1000; ++i) umlauts += "ä";
  for (const char* before : {"RUN ", "RUN a"}) {
    line = step(before + umlauts).line;
    EXPECT_LE(line.size(), 500u);
    EXPECT_GT(line.size(), 495u);
    EXPECT_TRUE(line.ends_with("ä…"));
  }
}

TEST(DockerfileFrom, ImagesStagesAndNames) {
  auto file = parsed("FROM --platform=linux/amd64 a:1 AS One\nFROM ONE\nFROM 00 as three\nFROM x AS x\nFROM x");
  ASSERT_EQ(file.stages.size(), 5u);
  EXPECT_EQ(file.stages[0].name, "one");
  EXPECT_EQ(file.stages[0].from, "a:1");
  EXPECT_EQ(file.stages[1].from, "one") << "as the stage is called";
  EXPECT_EQ(file.stages[1].name, "");
  EXPECT_EQ(file.stages[2].from, "0");
  EXPECT_EQ(file.ignored, Texts{"line 1: FROM --platform has no meaning here"});
}

TEST(DockerfileFrom, OddOnesAreRefused) {
  const std::pair<const char*, const char*> kTable[] = {
      {"FROM scratch", "a template or an image is needed"},
      {"FROM", "FROM has nothing after it"},
      {"FROM a b", "write: FROM"},
      {"FROM a AS", "write: FROM"},
      {"FROM a IN b", "write: FROM"},
      {"FROM a AS 1b", "is not a name for a stage"},
      {"FROM a AS b/c", "is not a name for a stage"},
      {"FROM a AS ''", "is not a name for a stage"},
      {"FROM --x a", "FROM --x is not supported"},
      {"FROM $nothing", "is empty"},
      {"FROM 0", "there is no earlier stage"},
      {"FROM a AS b\nFROM c AS B", "two stages"},
      {"FROM 'a", "a quote is not closed"},
  };
  for (const auto& [text, expected] : kTable) EXPECT_TRUE(has(error_of(text), expected)) << text << error_of(text);
}

TEST(DockerfileArg, BeforeTheFirstFromOnlyForFrom) {
  auto file = parsed("ARG V=1 W=$V.2\nARG X\nFROM a:$W$X\nARG Z=$V\nRUN b\nARG V\nRUN c\nFROM d:${V}");
  EXPECT_EQ(file.stages[0].from, "a:1.2");
  EXPECT_EQ(file.stages[0].steps[0].command, "export Z=''; b") << "V is not in the stage";
  EXPECT_EQ(file.stages[0].steps[1].command, "export V='1'; export Z=''; c") << "declared again";
  EXPECT_EQ(file.stages[1].from, "d:1");
}

TEST(DockerfileArg, GivenValuesWinOverDefaults) {
  auto stage = last("ARG V=1\nFROM a:$V\nARG V=3\nARG N\nRUN b\nWORKDIR /$V", {{"V", "2"}, {"N", "it's $HOME"}});
  EXPECT_EQ(stage.from, "a:2");
  EXPECT_EQ(stage.steps[0].command, "export N='it'\\''s $HOME'; export V='2'; b");
  EXPECT_EQ(stage.steps[1].value, "/2");
  EXPECT_EQ(last("ARG V=1\nFROM a\nARG V=3\nRUN b").steps[0].command, "export V='3'; b") << "the stage's own default";
}

TEST(DockerfileArg, RunSeesOnlyWhatIsDeclaredBeforeIt) {
  auto steps = last("FROM a\nRUN b\nARG V=1\nARG unset\nRUN c").steps;
  EXPECT_EQ(steps[0].command, "b");
  EXPECT_EQ(steps[1].command, "export V='1'; c");
  EXPECT_EQ(run_in_bash(last("FROM a\nARG V=\"a'b  $$ c\"\nRUN printf '%s' \"$V\"").steps[0].command), "a'b  $$ c");
}

TEST(DockerfileArg, EnvWins) {
  auto steps = last("FROM a\nARG V=arg\nENV V=env\nRUN b\nWORKDIR /$V", {{"V", "given"}}).steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1].command, "b");
  EXPECT_EQ(steps[2].value, "/env");
}

TEST(DockerfileArg, AStageOnAStageHasItsVariables) {
  auto file =
      parsed("FROM a AS one\nENV E=1\nARG A=2\nSHELL [\"sh\", \"-ec\"]\nFROM one\nRUN b\nWORKDIR /$E$A\nFROM a\nRUN b");
  EXPECT_EQ(file.stages[1].steps[0].command, "export A='2'; sh -ec 'b'");
  EXPECT_EQ(file.stages[1].steps[1].value, "/12");
  EXPECT_EQ(file.stages[2].steps[0].command, "b") << "not in a stage on something else";
}

TEST(DockerfileArg, WhatNobodyDeclaresIsRefused) {
  auto error = error_of("ARG A\nFROM a\nARG B\nFROM b\nARG C", {{"A", ""}, {"B", ""}, {"C", ""}, {"X", ""}, {"Y", ""}});
  EXPECT_EQ(error, "the Dockerfile declares no ARG for 'X', 'Y'");
  EXPECT_TRUE(has(error_of("FROM a\nARG a-b=1"), "line 2: 'a-b' is not a name for an ARG"));
  EXPECT_TRUE(has(error_of("FROM a\nARG =1"), "is not a name for an ARG"));
  EXPECT_TRUE(has(error_of("FROM a\nARG A", {{"A", std::string("x\0y", 3)}}), "NUL"));
}

TEST(DockerfileEnv, BothForms) {
  using Env = std::vector<std::pair<std::string, std::string>>;
  const std::pair<const char*, Env> kTable[] = {
      {"ENV k=v", {{"k", "v"}}},
      {"ENV k=v k2=\"v 2\" k3='$k' k4=a\\ b k5=", {{"k", "v"}, {"k2", "v 2"}, {"k3", "$k"}, {"k4", "a b"}, {"k5", ""}}},
      {"ENV k rest of  line", {{"k", "rest of  line"}}},
      {"ENV k a=b c", {{"k", "a=b c"}}},
      {"ENV k \\\n  x", {{"k", "x"}}},
      {"ENV k=a=b", {{"k", "a=b"}}},
      {"ENV a=\\$x b=${none:-d} c=$a", {{"a", "$x"}, {"b", "d"}, {"c", ""}}},
  };
  for (const auto& [text, env] : kTable) EXPECT_EQ(step(text).env, env) << text;
  auto steps = last("FROM a\nENV abc=hello\nENV abc=bye def=$abc\nENV ghi=$abc").steps;
  EXPECT_EQ(steps[1].env[1].second, "hello") << "as it was before the line";
  EXPECT_EQ(steps[2].env[0].second, "bye");
}

TEST(DockerfileEnv, OddOnesAreRefused) {
  for (const char* bad :
       {"ENV", "ENV k", "ENV k=v x", "ENV =v", "ENV k='v", "ENV k \"v", "ENV k=${x", "ENV k=${x//a/b}"})
    EXPECT_TRUE(error_of(std::string("FROM a\n") + bad).starts_with("Dockerfile line 2: ")) << bad;
}

TEST(DockerfileEnv, ThePathOfTheBaseIsTheUsualOne) {
  auto file = parsed("FROM a\nENV PATH=/opt/bin:$PATH\nENV PATH=/x:$PATH");
  EXPECT_EQ(file.stages[0].steps[0].env[0].second,
            "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
  EXPECT_TRUE(file.stages[0].steps[1].env[0].second.starts_with("/x:/opt/bin:/usr"));
  ASSERT_EQ(file.ignored.size(), 1u);
  EXPECT_TRUE(file.ignored[0].starts_with("line 2: the base's own PATH"));
}

TEST(DockerfileWorkdir, FollowsTheOneBefore) {
  auto values = [](const std::string& text) {
    Texts out;
    for (const auto& one : last("FROM a\n" + text).steps) out.push_back(one.value);
    return out;
  };
  EXPECT_EQ(values("WORKDIR /a\nWORKDIR b\nWORKDIR ../c/./d/\nWORKDIR /x"), (Texts{"/a", "/a/b", "/a/c/d", "/x"}));
  EXPECT_EQ(values("WORKDIR a\nWORKDIR b\nWORKDIR /c\nWORKDIR d"), (Texts{"a", "b", "/c", "/c/d"}));
  EXPECT_EQ(values("WORKDIR /../a b\nENV X=y\nWORKDIR \"$X\""), (Texts{"/a b", "", "/a b/y"}));
  EXPECT_EQ(values("WORKDIR /"), Texts{"/"});
  EXPECT_EQ(parsed("FROM a\nWORKDIR /x\nFROM 0\nWORKDIR y").stages[1].steps[0].value, "y") << "a new stage";
  EXPECT_TRUE(has(error_of("FROM a\nWORKDIR $none"), "line 2: WORKDIR is empty"));
}

TEST(DockerfileUser, OneName) {
  EXPECT_EQ(step("USER 1000:1000").value, "1000:1000");
  EXPECT_EQ(step("USER ${U:-app}").value, "app");
  EXPECT_TRUE(has(error_of("FROM a\nUSER a b"), "write: USER"));
  EXPECT_TRUE(has(error_of("FROM a\nUSER $none"), "USER is empty"));
}

TEST(DockerfileRun, LeavesVariablesToBash) {
  EXPECT_EQ(last("FROM a\nENV x=1\nRUN echo $x ${y:-\"z\"} \\$q").steps[1].command, "echo $x ${y:-\"z\"} \\$q");
}

TEST(DockerfileRun, ExecForm) {
  EXPECT_EQ(command("RUN [\"echo\", \"a b\", \"$HOME\", \"it's\"]"), "echo 'a b' '$HOME' 'it'\\''s'");
  EXPECT_EQ(run_in_bash(command("RUN [\"printf\", \"%s|\", \"$HOME\", \"a\\\\b\", \"\\u00e4\", \"\"]")),
            "$HOME|a\\b|ä||");
  EXPECT_EQ(command("RUN ['echo', 'a']"), "['echo', 'a']") << "no JSON: the shell form";
  EXPECT_EQ(command("RUN [ -f /x ] || true"), "[ -f /x ] || true");
  EXPECT_TRUE(has(error_of("FROM a\nRUN []"), "RUN has no command"));
}

TEST(DockerfileRun, BareHereDocumentsAreScripts) {
  EXPECT_EQ(command("RUN <<EOF\nset -e\n# not a comment of ours\n\necho \\\n  $x\nEOF"),
            "set -e\n# not a comment of ours\n\necho \\\n  $x");
  EXPECT_EQ(command("RUN <<-EOF\n\tif true; then\n\t\techo a\n\tfi\n\tEOF"), "if true; then\necho a\nfi");
  EXPECT_EQ(command("RUN <<'E F'\necho a\nE F"), "echo a");
  EXPECT_EQ(command("RUN <<\"EOF\"\r\necho a\r\nEOF\r\n"), "echo a");
  EXPECT_EQ(last("FROM a\nARG V=1\nRUN <<EOF\necho $V\nEOF\nUSER x").steps[0].command, "export V='1'; echo $V");
  EXPECT_TRUE(has(error_of("FROM a\nRUN <<EOF\nEOF"), "RUN has no command"));
}

TEST(DockerfileRun, OtherHereDocumentsAreLeftToBash) {
  auto text = command("RUN cat <<EOF | tr a b\n\ta $((1+1))\nEOF");
  EXPECT_EQ(text, "cat <<EOF | tr a b\n\ta $((1+1))\nEOF");
  EXPECT_EQ(run_in_bash(text), "\tb 2\n");
  EXPECT_EQ(run_in_bash(command("RUN cat <<-'A' && cat <<B\n\t$x\n\tA\nb\nB")), "$x\nb\n");
  EXPECT_EQ(run_in_bash(command("RUN (cat <<EOF)\nx\nEOF")), "x\n");
  EXPECT_EQ(command("RUN cat <<< EOF"), "cat <<< EOF");
  EXPECT_EQ(command("RUN echo '<<EOF' $((1<<2))"), "echo '<<EOF' $((1<<2))");
  auto steps = last("FROM a\nRUN <<A <<B\na\nA\nb\nB\nRUN c").steps;
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].command, "<<A <<B\na\nA\nb\nB");
}

TEST(DockerfileRun, AScriptMayNameItsInterpreter) {
  auto text = command("RUN <<EOF\n#!/bin/cat\nit's $HOME\nEOF");
  EXPECT_EQ(run_in_bash(text), "#!/bin/cat\nit's $HOME\n");
  EXPECT_EQ(run_in_bash("(" + command("RUN <<EOF\n#!/bin/sh\nexit 7\nEOF") + "); echo $?"), "7\n");
}

TEST(DockerfileRun, AHereDocumentThatDoesNotEnd) {
  auto error = error_of("FROM a\nRUN b\nRUN <<EOF\necho\n EOF\nEOF2");
  EXPECT_EQ(error, "Dockerfile line 3: the here-document is not closed with 'EOF'");
  EXPECT_TRUE(has(error_of("FROM a\nRUN cat <<A <<B\nA\nc"), "'B'"));
}

TEST(DockerfileRun, Flags) {
  auto file = parsed(
      "FROM a\n"
      "RUN --mount=type=cache,target=/root/.cache --mount=\"target=/x,type=cache\" --network=default a\n"
      "RUN --security=sandbox b");
  EXPECT_EQ(file.stages[0].steps[0].command, "a");
  EXPECT_EQ(file.ignored, (Texts{"line 2: RUN --mount=type=cache has no meaning here",
                                 "line 2: RUN --network=default has no meaning here",
                                 "line 3: RUN --security=sandbox has no meaning here"}));
  const std::pair<const char*, const char*> kTable[] = {
      {"--mount=type=secret,id=x", "RUN --mount=type=secret is not supported"},
      {"--mount=type=ssh", "RUN --mount=type=ssh is not supported"},
      {"--mount=type=bind,target=/x", "RUN --mount=type=bind is not supported"},
      {"--mount=target=/x", "RUN --mount=type=bind is not supported"},
      {"--mount=type=tmpfs,target=/x", "RUN --mount=type=tmpfs is not supported"},
      {"--network=host", "RUN --network=host is not supported"},
      {"--security=insecure", "RUN --security=insecure is not supported"},
      {"--other=1", "RUN --other=1 is not supported"},
  };
  for (const auto& [flag, expected] : kTable)
    EXPECT_EQ(error_of(std::string("FROM a\nRUN ") + flag + " true"), std::string("Dockerfile line 2: ") + expected);
  EXPECT_TRUE(has(error_of("FROM a\nRUN --network=default"), "RUN has no command"));
}

TEST(DockerfileShell, BashAndShWithTheirOptions) {
  EXPECT_EQ(last("FROM a\nSHELL [\"/bin/bash\", \"-c\"]\nRUN b c").steps[0].command, "b c");
  EXPECT_EQ(last("FROM a\nSHELL [\"/bin/sh\", \"-c\"]\nRUN b c").steps[0].command, "b c");
  auto stage = last(
      "FROM a\nARG V=1\nSHELL [\"/bin/bash\", \"-o\", \"pipefail\", \"-c\"]\n"
      "RUN false | echo 'a'\nRUN [\"x\"]\nCMD y z");
  EXPECT_EQ(stage.steps[0].command, "export V='1'; /bin/bash -o pipefail -c 'false | echo '\\''a'\\'''");
  EXPECT_EQ(stage.steps[1].command, "export V='1'; x") << "the exec form has no shell";
  EXPECT_EQ(stage.start, "/bin/bash -o pipefail -c 'y z'");
  for (const char* bad : {"[\"/bin/zsh\", \"-c\"]", "[\"powershell\", \"-command\"]"})
    EXPECT_TRUE(has(error_of(std::string("FROM a\nSHELL ") + bad), "is not supported")) << bad;
  for (const char* bad : {"/bin/bash -c", "[]", "[\"bash\"]", "[1, 2]"})
    EXPECT_TRUE(has(error_of(std::string("FROM a\nSHELL ") + bad), "write: SHELL")) << bad;
}

TEST(DockerfileCopy, SourcesAndTarget) {
  auto one = step("COPY --chown=app:app --chmod=0755 --link /a ./b/ c/../d* \"e f\" /x/");
  EXPECT_EQ(one.kind, Step::Kind::copy);
  EXPECT_EQ(one.sources, (Texts{"a", "b", "d*", "e f"}));
  EXPECT_EQ(one.target, "/x/");
  EXPECT_EQ(one.owner, "app:app");
  EXPECT_EQ(one.mode, "0755");
  EXPECT_EQ(one.stage, "");
  EXPECT_EQ(step("COPY . .").sources, Texts{"."});
  EXPECT_EQ(step("COPY / /y").sources, Texts{"."});
  EXPECT_EQ(step("COPY a b .").target, "./") << "as Docker has it";
  one = step("COPY [\"a b\", \"c d\"]");
  EXPECT_EQ(one.sources, Texts{"a b"});
  EXPECT_EQ(one.target, "c d");
  EXPECT_EQ(step("ADD a b").kind, Step::Kind::copy);
}

TEST(DockerfileCopy, VariablesAreFilledIn) {
  auto steps =
      last("FROM a\nENV D=/srv U=7 M=644\nCOPY --chown=$U:$U --chmod=$M x$U [\"$D/\"]\nCOPY [\"$U\", \"$D/\"]").steps;
  EXPECT_EQ(steps[1].owner, "7:7");
  EXPECT_EQ(steps[1].mode, "644");
  EXPECT_EQ(steps[1].sources, Texts{"x7"});
  EXPECT_EQ(steps[1].target, "[/srv/]") << "no JSON, as words stand before it";
  EXPECT_EQ(steps[2].sources, Texts{"7"});
  EXPECT_EQ(steps[2].target, "/srv/");
}

TEST(DockerfileCopy, FromStagesAndTemplates) {
  auto file = parsed("FROM a AS b\nFROM c\nCOPY --from=B /x /x\nCOPY --from=0 /x /x\nCOPY --from=some/Image:1 /x /x");
  EXPECT_EQ(file.stages[1].steps[0].stage, "b");
  EXPECT_EQ(file.stages[1].steps[1].stage, "0");
  EXPECT_EQ(file.stages[1].steps[2].stage, "some/Image:1");
  EXPECT_EQ(file.stages[1].steps[2].sources, Texts{"x"});
  EXPECT_TRUE(has(error_of("FROM a\nCOPY --from=0 x y"), "no earlier stage '0'"));
  EXPECT_TRUE(has(error_of("FROM a\nCOPY --from= x y"), "names no stage"));
}

TEST(DockerfileCopy, HereDocumentsAreFiles) {
  auto one = step("COPY <<EOF /etc/motd\nhello\nEOF");
  EXPECT_EQ(one.kind, Step::Kind::run);
  EXPECT_EQ(one.run_as, "root");
  EXPECT_TRUE(has(one.command, "isola_file='/etc/motd'; ")) << one.command;
  EXPECT_TRUE(
      has(one.command, "printf %s 'hello\n' >\"$isola_file\" && chown -- '0:0' \"$isola_file\" && chmod -- 0644"))
      << one.command;
  one = step("ADD --chown=app:app --chmod=755 <<-\"run.sh\" bin/\n\techo '$x' \\\n\t\"y\"\n\trun.sh");
  EXPECT_TRUE(has(one.command, "isola_file='bin/''run.sh'; ")) << one.command;
  EXPECT_TRUE(has(one.command, "printf %s 'echo '\\''$x'\\'' \\\n\"y\"\n' >")) << one.command;
  EXPECT_TRUE(has(one.command, "chown -- 'app:app' \"$isola_file\" && chmod -- 755")) << one.command;
  // Variables are filled in, quotes and what is escaped stay.
  auto steps = last("FROM a\nARG V=1\nCOPY a <<one <<'two' /x/\n\"$V\" '${V}' \\$V it's\none\n$V\ntwo").steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].sources, Texts{"a"});
  EXPECT_TRUE(has(steps[1].command, "'\"1\" '\\''1'\\'' \\$V it'\\''s\n'")) << steps[1].command;
  EXPECT_TRUE(has(steps[2].command, "isola_file='/x/''two'")) << steps[2].command;
  EXPECT_TRUE(has(steps[2].command, "printf %s '$V\n'")) << steps[2].command;
  EXPECT_TRUE(has(error_of("FROM a\nCOPY <<EOF /x\n" + std::string(100'000, 'a') + "\nEOF"), "at most 96 KiB"));
}

TEST(DockerfileCopy, OddOnesAreRefused) {
  const std::pair<const char*, const char*> kTable[] = {
      {"COPY a", "needs a source and a target"},
      {"COPY [\"a\"]", "needs a source and a target"},
      {"COPY --link", "needs a source and a target"},
      {"COPY a b /c", "ends with '/'"},
      {"COPY ../a b", "leaves the context"},
      {"COPY a/../../b c", "leaves the context"},
      {"COPY $none b", "a source is empty"},
      {"COPY a $none", "target of COPY is empty"},
      {"COPY --parents a b", "COPY --parents is not supported"},
      {"COPY --exclude=x a b", "COPY --exclude is not supported"},
      {"COPY --chmod=u+x a b", "not an octal number"},
      {"COPY <<EOF\na\nEOF", "needs a source and a target"},
      {"COPY a <<EOF\na\nEOF", "write: COPY <<NAME TARGET"},
      {"COPY <<EOF b /x\na\nEOF", "ends with '/'"},
      {"COPY <<a/b /x/\na\na/b", "is no name of a file"},
      {"COPY <<EOF /x\na", "is not closed with 'EOF'"},
      {"COPY <<EOF /x\n${a\nEOF", "of ${a"},
      {"ADD http://example.org/x /x", "use RUN curl or RUN git"},
      {"ADD HTTPS://example.org/x.git /x", "use RUN curl or RUN git"},
      {"ADD git@example.org:x/y.git /x", "use RUN curl or RUN git"},
      {"ADD git://example.org/x /x", "use RUN curl or RUN git"},
      {"COPY 'a b", "a quote is not closed"},
  };
  for (const auto& [text, expected] : kTable) {
    auto error = error_of(std::string("FROM a\n\n") + text);
    EXPECT_TRUE(error.starts_with("Dockerfile line 3: ")) << error;
    EXPECT_TRUE(has(error, expected)) << text << ": " << error;
  }
}

TEST(DockerfileCopy, AddUnpacks) {
  auto file = parsed("FROM a\nADD x.tar.gz z.txt /d/\nCOPY x.tar /d/");
  EXPECT_TRUE(file.stages[0].steps[0].unpack) << "what is an archive among them is found where they are";
  EXPECT_FALSE(file.stages[0].steps[1].unpack);
  EXPECT_TRUE(file.ignored.empty());
  EXPECT_TRUE(has(error_of("FROM a AS b\nFROM a\nADD --from=b /x /y"), "line 3: ADD --from"));
}

TEST(DockerfileVariables, OfTheBase) {
  auto variables = [](const std::string& from) -> std::optional<std::map<std::string, std::string>> {
    if (from != "python:3") return std::nullopt;
    return std::map<std::string, std::string>{{"PATH", "/opt/python:/bin"}, {"LANG", "C"}};
  };
  auto file = parse_dockerfile(
      "FROM python:3 AS one\nENV PATH=/app:$PATH HERE=$LANG\nARG LANG=x\nFROM one\nWORKDIR /$HERE\nFROM other\nENV "
      "PATH=$PATH:/x\n",
      {}, "", variables);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->stages[0].steps[0].env[0].second, "/app:/opt/python:/bin");
  EXPECT_EQ(file->stages[0].steps[0].env[1].second, "C");
  EXPECT_EQ(file->stages[1].steps[0].value, "/C");
  EXPECT_TRUE(file->ignored.empty());
  EXPECT_TRUE(parse_dockerfile("FROM later\nWORKDIR $WHERE\nEXPOSE $PORT\nUSER $WHO\n", {}, "", variables))
      << "what is not known yet is no mistake";
  EXPECT_FALSE(parse_dockerfile("FROM later\nWORKDIR\n", {}, "", variables));
}

TEST(DockerfileExpose, TcpPorts) {
  auto file = parsed("FROM a\nENV P=\"90 91\"\nEXPOSE 80 443/tcp 53/udp\nEXPOSE 8000-8002/TCP 80 $P");
  EXPECT_EQ(file.stages[0].ports, (std::vector<uint16_t>{80, 90, 91, 443, 8000, 8001, 8002}));
  EXPECT_EQ(file.ignored, Texts{"line 3: EXPOSE 53/udp has no meaning here"});
  for (const char* bad : {"0", "65536", "x", "80-", "-80", "90-80", "1 2 x"})
    EXPECT_TRUE(has(error_of(std::string("FROM a\nEXPOSE ") + bad), "line 2")) << bad;
}

TEST(DockerfileStart, EntrypointAndCmd) {
  const std::pair<const char*, const char*> kTable[] = {
      {"RUN x", ""},
      {"CMD run it $x", "run it $x"},
      {"CMD [\"run\", \"it now\"]", "run 'it now'"},
      {"CMD a\nCMD b", "b"},
      {"ENTRYPOINT [\"e\", \"1\"]", "e 1"},
      {"ENTRYPOINT [\"e\"]\nCMD [\"c\", \"$x\"]", "e c '$x'"},
      {"CMD [\"c\"]\nENTRYPOINT [\"e\"]", "e c"},
      {"ENTRYPOINT e 1\nCMD [\"c\"]", "e 1"},
      {"ENTRYPOINT e 1\nCMD c", "e 1"},
      {"ENTRYPOINT [\"e\"]\nCMD c 'd'", "e /bin/sh -c 'c '\\''d'\\'''"},
      {"ENTRYPOINT [\"e\"]\nENTRYPOINT []\nCMD c d", "c d"},
      {"ENTRYPOINT [\"e\"]\nCMD [\"c\"]\nCMD []", "e"},
      {"ENTRYPOINT e\nENTRYPOINT [\"f\"]", "f"},
      {"CMD [\"a\", b]", "[\"a\", b]"},
  };
  for (const auto& [text, expected] : kTable) EXPECT_EQ(start(text), expected) << text;
  auto file = parsed("FROM a AS b\nCMD x\nEXPOSE 1\nFROM b\nFROM c\nCMD y");
  EXPECT_EQ(file.stages[0].start, "x");
  EXPECT_EQ(file.stages[1].start, "") << "what the stage itself says";
  EXPECT_TRUE(file.stages[1].ports.empty());
  EXPECT_EQ(file.stages[2].start, "y");
}

TEST(Dockerfile, WhatHasNoMeaningHereIsSaid) {
  auto file = parsed(
      "FROM a\nLABEL a=b c=\"$d ${e%f}\"\nMAINTAINER it's me\nSTOPSIGNAL SIGTERM\nHEALTHCHECK --interval=5s CMD x\n"
      "VOLUME /x\nONBUILD RUN <<EOF\nVOLUME\nEOF\nRUN y");
  EXPECT_EQ(file.ignored, (Texts{"line 4: STOPSIGNAL has no meaning here", "line 5: HEALTHCHECK has no meaning here",
                                 "line 6: VOLUME has no meaning here", "line 7: ONBUILD has no meaning here"}));
  EXPECT_EQ(file.stages[0].steps.size(), 1u);
  EXPECT_TRUE(has(error_of("FROM a\nLABEL a=\"b"), "line 2: a quote is not closed"));
}

TEST(Dockerfile, EveryInstructionNeedsSomething) {
  for (const char* name : {"ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
                           "MAINTAINER", "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"})
    EXPECT_EQ(error_of(std::string("FROM a\n") + name + "  \n"),
              std::string("Dockerfile line 2: ") + name + " has nothing after it");
}

TEST(Dockerfile, UnknownInstructionsAndWhatWasMeant) {
  EXPECT_EQ(error_of("FROM a\n\n# x\nRUNN b"), "Dockerfile line 4: unknown instruction 'RUNN' (did you mean RUN?)");
  EXPECT_EQ(error_of("FORM a"), "Dockerfile line 1: unknown instruction 'FORM' (did you mean FROM?)");
  EXPECT_EQ(error_of("FROM a\nRUN x \\\n y\nbanana b"), "Dockerfile line 4: unknown instruction 'banana'");
  EXPECT_LT(error_of("FROM a\n" + std::string(100'000, 'R') + " b").size(), 200u);
}

TEST(Dockerfile, FromComesFirst) {
  EXPECT_EQ(error_of("RUN a\nFROM b"), "Dockerfile line 1: RUN stands before the first FROM");
  for (const char* none : {"", "\n\n", "# only this", "ARG A=1", "\\", "\xef\xbb\xbf"})
    EXPECT_EQ(error_of(none), "the Dockerfile has no FROM") << none;
}

TEST(Dockerfile, TheTargetIsTheLastStage) {
  const char* text = "FROM a AS one\nFROM b\nFROM c AS three\nARG V";
  EXPECT_EQ(parsed(text, {{"V", "1"}}, "ONE").stages.size(), 1u) << "V is declared, though not for this";
  EXPECT_EQ(parsed(text, {}, "1").stages.back().from, "b");
  EXPECT_EQ(parsed(text, {}, "three").stages.size(), 3u);
  EXPECT_EQ(parsed(text).stages.size(), 3u);
  EXPECT_EQ(error_of(text, {}, "two"), "the Dockerfile has no stage 'two', only one, 1, three");
  EXPECT_TRUE(has(error_of(text, {}, "3"), "no stage '3'"));
}

TEST(Dockerfile, SizeAndBytesAreChecked) {
  std::string lines = "FROM a\n";
  for (size_t i = 1; i < kMaxDockerfileLines; ++i) lines += "\n";
  EXPECT_TRUE(parse_dockerfile(lines, {}));
  EXPECT_TRUE(has(error_of(lines + "#"), "10,000 lines"));
  std::string large = "FROM a\n#";
  large.resize(kMaxDockerfile, 'x');
  EXPECT_TRUE(parse_dockerfile(large, {}));
  EXPECT_TRUE(has(error_of(large + "x"), "1 MiB"));
  EXPECT_TRUE(has(error_of(std::string_view("FROM a\nRUN \0", 12)), "NUL"));
  EXPECT_TRUE(has(error_of("FROM a\nRUN \xff"), "UTF-8"));
  EXPECT_TRUE(has(error_of("FROM a\nRUN \xc3"), "UTF-8"));
}

// Each would be gigabytes, or hours, without a bound. What counts is that an answer comes at all.
TEST(Dockerfile, NothingGrowsWithoutBound) {
  auto many = [](const std::string& first, const std::string& again, size_t times) {
    std::string out = "FROM a AS base\n" + first;
    for (size_t i = 0; i < times; ++i) out += again;
    return out;
  };
  std::string big(500'000, 'x');
  EXPECT_TRUE(has(error_of(many("ENV A=xx\n", "ENV A=$A$A\n", 9'000)), "larger than 16 MiB"));
  EXPECT_TRUE(has(error_of(many("ARG A=" + big + "\n", "RUN b\n", 9'000)), "larger than 16 MiB"));
  EXPECT_TRUE(has(error_of(many("ENV A=" + big + "\n", "FROM base\n", 9'000)), "larger than 16 MiB"));
  EXPECT_TRUE(has(error_of(many("WORKDIR /" + big + "\n", "WORKDIR b\n", 9'000)), "larger than 16 MiB"));
  EXPECT_TRUE(has(error_of(many("EXPOSE", " 1-65535", 100'000)), "larger than 16 MiB"));
  EXPECT_TRUE(has(error_of(many("SHELL [\"bash\", \"-c\", \"" + big + "\"]\n", "RUN b\n", 9'000)), "at most 1024"));
  EXPECT_TRUE(has(error_of(many("RUN ", "<<a ", 200'000)), "not closed"));
  EXPECT_TRUE(has(error_of(many("RUN ", "--mount=type=cache ", 50'000)), "RUN has no command"));
  EXPECT_TRUE(has(error_of(many("WORKDIR ", "${a:-", 200'000)), "nested too deeply"));
  EXPECT_EQ(parsed(many("RUN ", "[", 1'000'000)).stages[0].steps[0].command.size(), 1'000'000u);
  EXPECT_EQ(parsed(many("ENTRYPOINT [\"" + big + "\"]\n", "CMD [\"b\"]\n", 9'000)).stages[0].start.size(), 500'002u);
  EXPECT_EQ(parsed(many("COPY ", "a ", 400'000) + "/").stages[0].steps[0].sources.size(), 400'000u);
  EXPECT_EQ(parsed(many("RUN a", "\\\n\n#\n", 3'000) + "b").stages[0].steps[0].command, "ab");
}

// Beginnings and mixtures of what means something: whatever comes out, it comes out without a fault.
TEST(Dockerfile, SurvivesMixtures) {
  const char* const kPieces[] = {
      "FROM a\n", "RUN ",     "<<EOF", "EOF\n", "\\\n",   "\\",      "\"",       "'",   "${",   "}",
      "$x",       ":-",       "COPY ", "a b/ ", "--",     "--from=", "=",        "[\"", "\"]",  "ENV ",
      "ARG x",    "\n",       "# ",    "\r\n",  "EXPOSE", " 1-2/",   "WORKDIR ", "../", "CMD ", "\t",
      "SHELL ",   "ONBUILD ", "ä",     "USER ", "ADD ",   "FROM ",   " AS b",    "`",   "0",    "# escape=`\n"};
  uint32_t random = 1;
  auto next = [&] { return (random = random * 1664525u + 1013904223u) >> 8; };
  size_t good = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string text = round % 2 ? "FROM a\n" : "";
    for (uint32_t n = next() % 24; n > 0; --n) text += kPieces[next() % std::size(kPieces)];
    auto read = parse_dockerfile(text, {{"x", "1"}});
    good += read ? 1 : 0;
    EXPECT_TRUE(read ? !read->stages.empty() : !read.error().message.empty()) << text;
  }
  EXPECT_GT(good, 0u);
}

}  // namespace
}  // namespace isola::builder
