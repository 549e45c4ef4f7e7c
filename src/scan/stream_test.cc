#include "scan/stream.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "scan/naive.h"

namespace isola::scan {
namespace {

std::shared_ptr<const Automaton> automaton_of(const std::vector<Value>& values) {
  auto made = Automaton::make(values);
  EXPECT_TRUE(made) << made.error().message;
  return *made;
}

struct Outcome {
  std::string out;
  std::vector<Hit> hits;
};

template <typename Size>
Outcome pass(const std::shared_ptr<const Automaton>& automaton, std::string_view text, Size size) {
  Stream stream(automaton), keeps(automaton);  // the second for one who keeps the bytes himself
  Outcome outcome;
  std::vector<Hit> same;
  for (size_t at = 0; at < text.size();) {
    size_t n = std::min(text.size() - at, std::max<size_t>(1, size()));
    stream.feed(text.substr(at, n), outcome.out, outcome.hits);
    keeps.feed(text.substr(at, n), same);
    at += n;
    EXPECT_EQ(keeps.decided(), outcome.out.size());
    EXPECT_LT(stream.held(), std::max<size_t>(1, automaton->longest()));
  }
  stream.end(outcome.out);
  EXPECT_EQ(stream.held(), 0u);
  keeps.end();
  EXPECT_EQ(keeps.decided(), text.size());
  EXPECT_EQ(same, outcome.hits);
  std::sort(outcome.hits.begin(), outcome.hits.end(), order_of_hits);
  return outcome;
}

Outcome at_once(const std::shared_ptr<const Automaton>& automaton, std::string_view text) {
  return pass(automaton, text, [&] { return text.size(); });
}

TEST(Scan, BlotsOutWhatItFinds) {
  auto automaton = automaton_of({{"github", "ghx_9vK2mQ7"}});
  auto seen = at_once(automaton, "token=ghx_9vK2mQ7; echo ghx_9vK2mQ8");
  EXPECT_EQ(seen.out, "token=***********; echo ghx_9vK2mQ8");
  ASSERT_EQ(seen.hits.size(), 1u);
  EXPECT_EQ(automaton->id_of(seen.hits[0].value), "github");
  EXPECT_EQ(seen.hits[0], (Hit{.value = 0, .form = Form::raw, .offset = 6, .length = 11}));
}

TEST(Scan, WhatIsLetGoIsStillABeginning) {
  auto automaton = automaton_of({{"github", "ghx_9vK2mQ7"}});
  Stream stream(automaton);
  std::vector<Hit> hits;
  stream.feed("a ghx_9v", hits);
  EXPECT_EQ(stream.decided(), 2u);
  stream.idle();
  EXPECT_EQ(stream.decided(), 2 + kIdleMost);
  EXPECT_EQ(stream.beginnings(), kIdleMost);
  stream.let_go();
  EXPECT_EQ(stream.decided(), 8u);
  EXPECT_EQ(stream.beginnings(), 6u);
  stream.feed("K2mQ7", hits);
  ASSERT_EQ(hits.size(), 1u);
  EXPECT_EQ(hits[0].offset, 2u);
  EXPECT_EQ(stream.beginnings(), 0u);
}

TEST(Scan, CaseCountsInTheValueAndNotInHex) {
  auto automaton = automaton_of({{"s", "Secret-1/2"}});
  EXPECT_TRUE(at_once(automaton, "secret-1/2 SECRET-1/2").hits.empty());
  EXPECT_EQ(at_once(automaton, "5365637265742d312f32 5365637265742D312F32 5365637265742d312F32").hits.size(), 3u);
  EXPECT_EQ(at_once(automaton, "Secret-1%2f2 Secret-1%2F2").hits.size(), 2u);
  EXPECT_TRUE(at_once(automaton, "secret-1%2F2").hits.empty());
}

TEST(Scan, EveryFormIsFoundAndNamed) {
  auto automaton = automaton_of({{"s", "p\"ss?w>rd~/+12"}});
  for (const Spelling& spelling : spellings("p\"ss?w>rd~/+12")) {
    std::string text = "before " + spelling.bytes + " behind";
    auto seen = at_once(automaton, text);
    auto is_it = [&](const Hit& hit) { return hit.form == spelling.form && hit.length == spelling.bytes.size(); };
    EXPECT_TRUE(std::any_of(seen.hits.begin(), seen.hits.end(), is_it)) << spelling.bytes;
    EXPECT_EQ(seen.out, "before " + std::string(spelling.bytes.size(), '*') + " behind");
  }
}

TEST(Scan, WhatCannotBeSearchedForIsNamed) {
  auto automaton = automaton_of({{"short", "12345"}, {"even", "aaaaaaaaaa"}, {"good", "123456"}, {"none", ""}});
  EXPECT_EQ(automaton->unsearched(), (std::vector<std::string>{"short", "even", "none"}));
  EXPECT_EQ(at_once(automaton, "12345 aaaaaaaaaa").out, "12345 aaaaaaaaaa");
  EXPECT_EQ(at_once(automaton, "x123456x").out, "x******x");
  auto nothing = automaton_of({});
  EXPECT_EQ(at_once(nothing, "anything").out, "anything");
}

TEST(Scan, OverlappingValues) {
  auto automaton = automaton_of({{"a", "abcdefgh"}, {"b", "efghijkl"}, {"c", "cdefgh"}});
  auto seen = at_once(automaton, "__abcdefghijkl__");
  EXPECT_EQ(seen.out, "__************__");
  EXPECT_EQ(seen.hits.size(), 3u);
}

TEST(Scan, NoByteWaitsThatIsDecided) {
  auto automaton = automaton_of({{"s", "hunter2hunter3"}});
  Stream stream(automaton);
  std::string out;
  std::vector<Hit> hits;
  stream.feed("no beginning of it.", out, hits);
  EXPECT_EQ(out, "no beginning of it.");
  stream.feed("hunter2", out, hits);
  EXPECT_EQ(out, "no beginning of it.");
  EXPECT_EQ(stream.held(), 7u);
  stream.feed("!", out, hits);
  EXPECT_EQ(out, "no beginning of it.hunter2!");
  stream.feed("hunter2hunter", out, hits);
  stream.feed("3", out, hits);
  EXPECT_EQ(out, "no beginning of it.hunter2!**************");
  EXPECT_EQ(hits.size(), 1u);
}

// A writer that makes a pause after each byte gets only the first bytes past us.
TEST(Scan, PausesDoNotLetAValueThrough) {
  const std::string value = "hunter2hunter3";
  auto automaton = automaton_of({{"s", value}});
  Stream stream(automaton);
  std::string out;
  std::vector<Hit> hits;
  for (char c : "$ " + value + " $ ") {
    stream.feed(std::string_view(&c, 1), out, hits);
    stream.idle(out);
  }
  stream.end(out);
  EXPECT_EQ(out, "$ hun*********** $ ");
  EXPECT_EQ(hits.size(), 1u);
  // A prompt that ends like the beginning of a value appears.
  Stream prompt(automaton);
  out.clear();
  prompt.feed("login: h", out, hits);
  EXPECT_EQ(out, "login: ");
  prompt.idle(out);
  EXPECT_EQ(out, "login: h");
  prompt.feed("unter2", out, hits);
  prompt.idle(out);
  EXPECT_EQ(out, "login: hun");
  prompt.feed("hunter2hunter3", out, hits);
  prompt.end(out);
  EXPECT_EQ(out, "login: hunter2**************");
}

TEST(Scan, TooMuchIsRefused) {
  std::string huge(200'000, 'x');
  std::mt19937 random(1);
  for (char& c : huge) c = static_cast<char>('!' + random() % 90);
  auto made = Automaton::make(std::vector<Value>{{"huge", huge}});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::exhausted);
}

// Against the slow search: few letters, so that beginnings of values are everywhere, and pieces of random sizes.
TEST(Scan, AsTheSlowSearchFindsIt) {
  int rounds = std::getenv("ISOLA_TEST_FULL") ? 3000 : 300;
  if (rounds < 3000) std::printf("reduced: random streams %d instead of 3000 (ISOLA_TEST_FULL=1 does all)\n", rounds);
  std::mt19937 random(4711);
  auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  size_t found = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string letters = round % 3 == 0 ? "ab" : round % 3 == 1 ? "aAbB/%\"" : "abcdefghijklmnop\x80\xff";
    auto word = [&](size_t n) {
      std::string text;
      while (text.size() < n) text.push_back(letters[below(letters.size())]);
      return text;
    };
    std::vector<std::string> texts;
    for (size_t n = 1 + below(4); texts.size() < n;) texts.push_back(word(5 + below(round % 2 ? 8 : 40)));
    std::vector<Value> values;
    for (const auto& text : texts) values.push_back({"v", text});
    auto automaton = automaton_of(values);
    std::string stream;
    while (stream.size() < 600) {
      if (below(3)) {
        stream += word(below(20));
      } else {
        auto all = spellings(texts[below(texts.size())]);
        std::string piece = all[below(all.size())].bytes;
        if (below(4) == 0) piece.resize(below(piece.size() + 1));
        if (below(4) == 0)
          for (char& c : piece)
            if (c >= 'a' && c <= 'z' && below(2)) c = static_cast<char>(c & ~0x20);
        stream += piece;
      }
    }
    auto wanted = find_slowly(values, stream);
    found += wanted.size();
    size_t most = 1 + below(80);
    auto seen = pass(automaton, stream, [&] { return below(most + 1); });
    ASSERT_EQ(seen.hits, wanted) << "round " << round;
    ASSERT_EQ(seen.out, blotted(stream, wanted)) << "round " << round;
  }
  EXPECT_GT(found, 1000u);
}

// A long piece behind one that ended in a beginning: that is followed, and what lies where the joining ends is found.
TEST(Scan, AsTheSlowSearchFindsItInALongPieceBehindABeginning) {
  const std::string value = "ghx_9vK2mQ7", prefix = value.substr(0, value.size() - 1);
  const std::string many(9000, 'a'), with_end = many + "b";  // a Value keeps no text of its own
  const std::vector<Value> values = {{"v", value}, {"many", with_end}};
  auto automaton = automaton_of(values);
  for (const size_t begun : {size_t{1}, prefix.size(), size_t{8500}}) {
    const std::string first = "x" + (begun > value.size() ? many.substr(0, begun) : value.substr(0, begun));
    for (size_t at = 4096 - 12; at <= 4096 + 1; ++at) {
      std::string rest = begun > value.size() ? many.substr(begun) + "b" : value.substr(begun);
      rest.resize(20'000, '.');
      for (size_t step : {size_t{0}, size_t{4096}, size_t{8500 - 4096}}) rest.replace(at + step, value.size(), value);
      rest.replace(13'000, prefix.size(), prefix);
      rest.replace(rest.size() - 5, 5, value, 0, 5);
      const std::string all = first + rest;
      auto wanted = find_slowly(values, all);
      EXPECT_GE(wanted.size(), 3u);
      size_t piece = 0;
      auto seen = pass(automaton, all, [&] { return piece++ ? rest.size() : first.size(); });
      ASSERT_EQ(seen.hits, wanted) << begun << " at " << at;
      ASSERT_EQ(seen.out, blotted(all, wanted)) << begun << " at " << at;
    }
  }
}

// Long stretches without anything are skipped by another way than short ones.
TEST(Scan, AsTheSlowSearchFindsItInLongStreams) {
  std::mt19937 random(815);
  for (int round = 0; round < 12; ++round) {
    std::string value, stream(40'000, ' ');
    size_t length = 6 + random() % 50;
    while (value.size() < length) value.push_back(static_cast<char>('A' + random() % 58));
    for (char& c : stream) c = static_cast<char>(round % 2 ? random() : 'A' + random() % 58);
    std::vector<Value> values = {{"v", value}};
    for (const Spelling& spelling : spellings(value))
      stream.replace(random() % (stream.size() - spelling.bytes.size()), spelling.bytes.size(), spelling.bytes);
    // At the very beginning, the very end, and where two stretches meet.
    for (size_t at : {size_t{0}, stream.size() - length, size_t{1024} - length / 2, size_t{4096} - 1})
      stream.replace(at, length, value);
    auto automaton = automaton_of(values);
    auto wanted = find_slowly(values, stream);
    EXPECT_GT(wanted.size(), 4u);
    auto seen = round % 3 ? at_once(automaton, stream) : pass(automaton, stream, [&] { return random() % 9000; });
    ASSERT_EQ(seen.hits, wanted) << "round " << round;
    ASSERT_EQ(seen.out, blotted(stream, wanted)) << "round " << round;
  }
}

// Of a large piece only the seam is looked at together with what was held before it: every spelling, cut at every
// place, with more beginnings of it on both sides.
TEST(Scan, ASpellingAcrossTheBorderOfLargePieces) {
  const std::string value = "aab/\"aabaab+9~aabZ";
  const std::vector<Value> values = {{"v", value}, {"w", "baabaa%22"}};
  auto automaton = automaton_of(values);
  const std::string calm(3000, '.');
  for (const Spelling& spelling : spellings(value)) {
    const std::string begun = spelling.bytes.substr(0, spelling.bytes.size() - 1);
    const std::string text = calm + begun + spelling.bytes + begun + "aab" + calm;
    const auto wanted = find_slowly(values, text);
    ASSERT_FALSE(wanted.empty());
    for (size_t cut = calm.size(); cut <= text.size() - calm.size(); ++cut) {
      bool first = true;
      auto seen = pass(automaton, text, [&] { return std::exchange(first, false) ? cut : text.size(); });
      ASSERT_EQ(seen.hits, wanted) << spelling.bytes << " cut at " << cut;
      ASSERT_EQ(seen.out, blotted(text, wanted)) << spelling.bytes << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace isola::scan
