#include "builder/dockerfile_words.h"

#include <gtest/gtest.h>

#include <map>

namespace isola::builder {
namespace {

std::string filled(std::string_view text, char escape = '\\') {
  static const std::map<std::string, std::string, std::less<>> kValues = {{"x", "one"}, {"empty", ""}, {"sp", "a b"}};
  auto look = [](std::string_view name) -> std::optional<std::string_view> {
    auto found = kValues.find(name);
    return found == kValues.end() ? std::nullopt : std::optional<std::string_view>(found->second);
  };
  Budget budget;
  auto out = fill_in(text, escape, look, budget);
  return out ? *out : "error: " + out.error().message;
}

TEST(DockerfileWords, VariablesAreFilledIn) {
  const std::pair<const char*, const char*> kTable[] = {
      {"a", "a"},
      {"$x", "one"},
      {"$x$x", "oneone"},
      {"a${x}b", "aoneb"},
      {"$xy", ""},
      {"$none", ""},
      {"${none:-d}", "d"},
      {"${empty:-d}", "d"},
      {"${empty-d}", ""},
      {"${none-d}", "d"},
      {"${x:-d}", "one"},
      {"${x:+a}", "a"},
      {"${empty:+a}", ""},
      {"${empty+a}", "a"},
      {"${none+a}", ""},
      {"${x:?e}", "one"},
      {"${none:-${x}-$sp}", "one-a b"},
      {"${none:-${none:-${none:-deep}}}", "deep"},
      {"${none:-'}'}", "}"},
      {"\\$x", "$x"},
      {"\\${x}", "${x}"},
      {"'$x'", "$x"},
      {"\"$x y\"", "one y"},
      {"\"\\$x \\\" \\\\ \\n\"", "$x \" \\ \\n"},
      {"it\\'s", "it's"},
      {"a\\b", "ab"},
      {"\"it's\"", "it's"},
      {"$", "$"},
      {"100$ $%", "100$ $%"},
      {"a\\", "a"},
      {"}", "}"},
      {"", ""},
  };
  for (const auto& [text, expected] : kTable) EXPECT_EQ(filled(text), expected) << text;
}

TEST(DockerfileWords, TheEscapeCharacterCanBeAnother) {
  EXPECT_EQ(filled("C:\\$x", '`'), "C:\\one");
  EXPECT_EQ(filled("`$x", '`'), "$x");
}

TEST(DockerfileWords, WhatIsNotClosedIsAnError) {
  for (const char* bad : {"${x", "${", "${}", "${x:", "${x:-a", "${1}", "${x%y}", "${x:=y}", "'a", "\"a", "\"${x:-a\"",
                          "${none:?is needed}", "${none?is needed}"})
    EXPECT_TRUE(filled(bad).starts_with("error: ")) << bad << " → " << filled(bad);
  EXPECT_NE(filled("${none:?is needed}").find("is needed"), std::string::npos);
}

TEST(DockerfileWords, NestingIsBounded) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "${n:-";
  EXPECT_EQ(filled(deep), "error: a ${ is nested too deeply");
}

TEST(DockerfileWords, TheBudgetEndsGrowth) {
  std::string big(1 << 20, 'x'), text;
  for (int i = 0; i < 17; ++i) text += "$a";
  Budget budget;
  auto out = fill_in(text, '\\', [&](std::string_view) { return std::optional<std::string_view>(big); }, budget);
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().code, Code::exhausted);
}

TEST(DockerfileWords, WordsKeepTheirQuotes) {
  auto words = split_words("  a=1\tb=\"x \\\" y\" c='d e'\\ f g\\", '\\');
  ASSERT_TRUE(words);
  EXPECT_EQ(*words, (std::vector<std::string_view>{"a=1", "b=\"x \\\" y\"", "c='d e'\\ f", "g\\"}));
  EXPECT_TRUE(split_words("", '\\')->empty());
  for (const char* bad : {"a 'b", "\"a\\\"", "a'"}) EXPECT_FALSE(split_words(bad, '\\')) << bad;
}

TEST(DockerfileWords, FlagsAreTakenOffTheFront) {
  std::string_view text = "--a=1 --b --c=\"x y\" rest --d";
  auto flags = take_flags(text, '\\');
  ASSERT_TRUE(flags);
  ASSERT_EQ(flags->size(), 3u);
  EXPECT_EQ((*flags)[0].value, "1");
  EXPECT_EQ((*flags)[1].name, "b");
  EXPECT_EQ((*flags)[1].value, "");
  EXPECT_EQ((*flags)[2].value, "\"x y\"");
  EXPECT_EQ(text, "rest --d");
  text = "--a -- --b";
  EXPECT_EQ(take_flags(text, '\\')->size(), 1u);
  EXPECT_EQ(text, "--b");
  text = "--a='";
  EXPECT_FALSE(take_flags(text, '\\'));
}

TEST(DockerfileWords, JsonArraysOfStringsOnly) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(json_words("[]"), Words{});
  EXPECT_EQ(json_words("[ \"a\" , \"b c\" ]"), (Words{"a", "b c"}));
  EXPECT_EQ(json_words("[\"\\u00e4\\n\\\"\"]"), (Words{"ä\n\""}));
  for (const char* bad : {"", "a", "['a']", "[\"a\",]", "[\"a\"] b", "[\"a\", 1]", "[[\"a\"]]", "{}", "\"a\"", "[\"a",
                          "[\"\\u0000\"]", "[\"\\x\"]", "["})
    EXPECT_EQ(json_words(bad), std::nullopt) << bad;
  EXPECT_EQ(json_words(std::string(1 << 20, '[')), std::nullopt);
}

TEST(DockerfileWords, HereDocuments) {
  struct Case {
    const char* word;
    const char* delimiter;
    bool strip_tabs, whole;
  };
  const Case kTable[] = {
      {"<<EOF", "EOF", false, true},      {"<<-EOF", "EOF", true, true},     {"<<'E F'", "E F", false, true},
      {"<<\"EOF\"", "EOF", false, true},  {"3<<EOF", "EOF", false, true},    {"<<\\EOF", "EOF", false, true},
      {"<<EOF)", "EOF", false, false},    {"<<EOF>/x", "EOF", false, false}, {"<<EOF;", "EOF", false, false},
      {"<<EOF cat", "EOF", false, false},
  };
  for (const auto& one : kTable) {
    auto found = heredoc_of(one.word);
    ASSERT_TRUE(found) << one.word;
    EXPECT_EQ(found->delimiter, one.delimiter) << one.word;
    EXPECT_EQ(found->strip_tabs, one.strip_tabs) << one.word;
    EXPECT_EQ(found->whole, one.whole) << one.word;
  }
  for (const char* other : {"", "<", "<<", "<<-", "<<<EOF", "a<<EOF", "'<<EOF'", "$((1<<2))", "<<''"})
    EXPECT_FALSE(heredoc_of(other)) << other;
  EXPECT_EQ(heredocs_in("cat <<A '<<B' \"<<C\" <<-D > x", '\\').size(), 2u);
  EXPECT_TRUE(heredocs_in("it's <<A", '\\').empty());
}

TEST(DockerfileWords, BashTakesTheWordsAsTheyAre) {
  const std::pair<std::vector<std::string>, const char*> kTable[] = {
      {{}, ""},
      {{"ls", "-l", "/a/b.c"}, "ls -l /a/b.c"},
      {{"a b", "$x", "it's"}, "'a b' '$x' 'it'\\''s'"},
      {{"A=b", ""}, "'A=b' ''"},
      {{"time", "while", "~", "*", "!"}, "'time' 'while' '~' '*' '!'"},
      {{"a\nb", "ä"}, "'a\nb' 'ä'"},
  };
  for (const auto& [words, expected] : kTable) EXPECT_EQ(bash_line(words), expected);
  EXPECT_EQ(in_shell({"/bin/bash", "-c"}, "a 'b'"), "a 'b'");
  EXPECT_EQ(in_shell({"/bin/bash", "-eo", "pipefail", "-c"}, "a 'b'"), "/bin/bash -eo pipefail -c 'a '\\''b'\\'''");
}

TEST(DockerfileWords, PathsAreCleaned) {
  const std::pair<const char*, const char*> kTable[] = {
      {"/a/b", "a/b"}, {"./a", "a"}, {"a/../b", "b"}, {"a//b/./", "a/b"}, {"/", ""}, {".", ""}, {"...", "..."},
  };
  for (const auto& [path, expected] : kTable) EXPECT_EQ(clean_path(path, Leaving::refused), expected) << path;
  for (const char* out : {"..", "../a", "a/../../b", "/..", "./../a"}) {
    EXPECT_EQ(clean_path(out, Leaving::refused), std::nullopt) << out;
    EXPECT_TRUE(clean_path(out, Leaving::stays)) << out;
  }
  EXPECT_EQ(clean_path("/a/../../b", Leaving::stays), "b");
}

TEST(DockerfileWords, ClippedBetweenCharacters) {
  EXPECT_EQ(clipped("abc", 3), "abc");
  EXPECT_EQ(clipped("abcdefgh", 6), "abc…");
  EXPECT_EQ(clipped("aääää", 6), "aä…");   // 3 bytes fit
  EXPECT_EQ(clipped("aäääää", 7), "aä…");  // 4 would cut one in two
  EXPECT_EQ(clipped("a\tb\nc\x1b[31md", 80), "a b cd");
  EXPECT_EQ(clipped("abc", 1), "…");
}

TEST(DockerfileWords, TheNearestName) {
  EXPECT_EQ(nearest("RUNN", {"RUN", "ENV"}), "RUN");
  EXPECT_EQ(nearest("EVN", {"RUN", "ENV"}), "ENV");
  EXPECT_EQ(nearest("BANANA", {"RUN", "ENV"}), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'R'), {"RUN"}), "");
}

}  // namespace
}  // namespace isola::builder
