#include "interpreter/agent/output.h"

#include <gtest/gtest.h>

#include "interpreter/bounds.h"

namespace isola::interpreter {
namespace {

struct Heard {
  std::vector<Json> events;
  Output output;
  explicit Heard(size_t most = 1 << 20) : output([this](const Json& event) { events.push_back(event); }, most) {}
  void stream(const std::string& text) { output.take({"stream", "", {{"name", "stdout"}, {"text", text}}, {}}); }
};

TEST(Output, KindsAreTranslated) {
  Heard heard;
  heard.stream("a");
  heard.output.take({"stream", "", {{"name", "stderr"}, {"text", "b"}}, {}});
  heard.output.take({"execute_input", "", {{"code", "1"}}, {}});
  heard.output.take({"execute_result", "", {{"data", {{"text/plain", "1"}}}}, {}});
  heard.output.take({"update_display_data", "", {{"data", {}}, {"transient", {{"display_id", "d"}}}}, {}});
  heard.output.take({"error", "", {{"ename", "E"}, {"evalue", "v"}, {"traceback", {"t", 5}}}, {}});
  ASSERT_EQ(heard.events.size(), 5u);
  EXPECT_EQ(heard.events[0], Json({{"type", "stdout"}, {"text", "a"}}));
  EXPECT_EQ(heard.events[1]["type"], "stderr");
  EXPECT_EQ(heard.events[2]["main"], true);
  EXPECT_EQ(heard.events[3]["display_id"], "d");
  EXPECT_EQ(heard.events[4]["traceback"], Json({"t"}));
  EXPECT_TRUE(heard.output.failed());
}

TEST(Output, IsCutOnceAndCounted) {
  Heard heard(10);
  heard.stream("12345678");
  heard.stream("üüü");  // two bytes are left: one whole character
  heard.stream("more");
  ASSERT_EQ(heard.events.size(), 3u);
  EXPECT_EQ(heard.events[1]["text"], "ü");
  EXPECT_EQ(heard.events[2], Json({{"type", "truncated"}, {"limit_bytes", 10}}));
  EXPECT_EQ(heard.output.dropped(), 8u);
}

TEST(Output, ACharacterIsNotCutInTwo) {
  Heard heard(3);
  heard.stream("aüü");
  EXPECT_EQ(heard.events[0]["text"], "aü");
  Heard other(2);
  other.stream("aü");
  EXPECT_EQ(other.events[0]["text"], "a");
}

// R says the value of a cell as something displayed: which one was the last is known at the end.
TEST(Output, TheLastDisplayedValueIsTheMainOne) {
  Heard heard;
  heard.output.displays_values();
  heard.output.take({"display_data", "", {{"data", {{"text/plain", "1"}}}}, {}});
  EXPECT_TRUE(heard.events.empty());
  heard.output.take({"display_data", "", {{"data", {{"text/plain", "2"}}}}, {}});
  heard.output.end();
  ASSERT_EQ(heard.events.size(), 2u);
  EXPECT_EQ(heard.events[0]["main"], false);
  EXPECT_EQ(heard.events[1]["main"], true);
  heard.output.take({"display_data", "", {{"data", {{"text/plain", "p"}, {"image/png", "x"}}}}, {}});
  EXPECT_EQ(heard.events.size(), 3u) << "a picture is not held back";
}

TEST(Output, AFormThatIsTooLargeIsNamed) {
  Heard heard(100);
  heard.output.take(
      {"display_data", "", {{"data", {{"text/plain", "small"}, {"image/png", std::string(200, 'x')}}}}, {}});
  EXPECT_EQ(heard.events[0]["data"], Json({{"text/plain", "small"}}));
  EXPECT_EQ(heard.events[0]["omitted_bytes"], Json({{"image/png", 200}}));
  EXPECT_EQ(heard.events[1]["type"], "truncated");
}

TEST(Output, WhatWasLostIsSaid) {
  Heard heard;
  heard.output.take({"display_data", "", Json::object(), {}, "a number in it is too large"});
  ASSERT_EQ(heard.events.size(), 1u);
  EXPECT_EQ(heard.events[0]["type"], "lost");
  EXPECT_NE(heard.events[0]["message"].get<std::string>().find("too large"), std::string::npos);
}

TEST(Output, TextComesInPieces) {
  Heard heard(64 << 20);
  std::string text;
  while (text.size() < 3 << 20) text += "aü";
  heard.stream(text);
  std::string whole;
  for (const auto& event : heard.events) {
    std::string piece = event["text"];
    EXPECT_LE(piece.size(), 1u << 20);
    EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "it begins in a character";
    whole += piece;
  }
  EXPECT_EQ(whole, text);
  EXPECT_GE(heard.events.size(), 3u);
}

// Metadata, tracebacks, names, marks without content: whatever a program can repeat.
TEST(Output, NothingIsFree) {
  const std::string big(1 << 20, 'x');
  const Message floods[] = {
      {"display_data", "", {{"data", Json::object()}, {"metadata", {{"a", big}}}}, {}},
      {"display_data", "", {{"data", {{big, ""}}}}, {}},
      {"display_data", "", Json::object(), {}},
      {"update_display_data", "", {{"data", Json::object()}, {"transient", {{"display_id", big}}}}, {}},
      {"clear_output", "", Json::object(), {}},
      {"error", "", {{"ename", big}, {"evalue", big}, {"traceback", {big, big, big}}}, {}},
      {"stream", "", {{"name", "stdout"}, {"text", std::string(1000, '\x01')}}, {}},
      {"display_data", "", Json::object(), {}, "lost"},
  };
  for (const auto& message : floods) {
    const size_t most = 100'000;
    size_t said = 0;
    // As the host weighs it: text as it is, all else as it is written.
    Output output(
        [&](const Json& event) {
          said += event.contains("text") ? event["text"].get<std::string>().size() : dump(event).size();
        },
        most);
    for (int i = 0, over = 0; i < 20'000 && over < 50; ++i) {
      output.take(message);
      if (output.dropped() > 0) ++over;
    }
    EXPECT_LE(said, most + kBeyond + 100) << message.type << ": " << dump(message.content).substr(0, 60);
    EXPECT_GT(output.dropped(), 0u) << message.type;
  }
}

TEST(Output, AnErrorComesWhenTheOutputWasCut) {
  Heard heard(10);
  heard.stream(std::string(100, 'x'));
  heard.output.take({"error", "", {{"ename", "E"}, {"evalue", "v"}, {"traceback", Json::array({"t"})}}, {}});
  EXPECT_EQ(heard.events.back(), Json({{"type", "error"}, {"name", "E"}, {"value", "v"}, {"traceback", {"t"}}}));
}

}  // namespace
}  // namespace isola::interpreter
