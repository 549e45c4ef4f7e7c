#include "interpreter/events.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "interpreter/bounds.h"

namespace isola::interpreter {
namespace {

using nlohmann::json;

std::optional<json> read(const std::string& text) {
  auto line = parse_line(text);
  return line ? event_of(std::move(*line)) : std::nullopt;
}

TEST(Events, OnlyWhatAnEventCanHaveGoesOn) {
  EXPECT_EQ(read(R"({"type":"stdout","text":"a","untrusted":[]})"), json({{"type", "stdout"}, {"text", "a"}}));
  EXPECT_EQ(read(R"({"type":"result","main":true,"data":{"text/plain":"2"},"type2":1})"),
            json({{"type", "result"}, {"main", true}, {"data", {{"text/plain", "2"}}}}));
  EXPECT_EQ(read(R"({"type":"error","name":"E","value":5,"traceback":["a",5,"b"]})"),
            json({{"type", "error"}, {"name", "E"}, {"traceback", {"a", "b"}}}));
  EXPECT_EQ(read(R"({"type":"result","data":"no","main":"yes","metadata":[]})"), json({{"type", "result"}}));
  for (const char* none : {R"({"type":"ping"})", R"({"type":"failure"})", R"({"type":5})", "{}"})
    EXPECT_FALSE(read(none)) << none;
}

TEST(Events, AnEndIsOneOfThoseThatThereAre) {
  json wanted = {{"type", "end"}, {"status", "ok"}, {"execution_count", 3}, {"duration_ms", 12}};
  EXPECT_EQ(read(R"({"type":"end","status":"ok","execution_count":3,"duration_ms":12,"untrusted":[],"stdout":"forged",
                     "dropped_bytes":-1,"sandbox":"other"})"),
            wanted);
  EXPECT_EQ(read(R"({"type":"end","status":"wonderful","duration_ms":"x"})"),
            json({{"type", "end"}, {"status", "error"}}));
  std::string longer(10000, 'x');
  EXPECT_EQ((*read(R"({"type":"end","message":")" + longer + "\"}"))["message"].get<std::string>().size(), 2000u);
}

// Copying and writing JSON is recursive: what is nested deeply enough would be the end of the server.
TEST(Events, DeepAndWideLinesAreNotParsed) {
  std::string deep(2'000'000, '['), end(2'000'000, ']');
  auto line = parse_line(R"({"type":"result","data":{"application/json":)" + deep + end + "}}");
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().code, Code::corrupt);
  std::string wide = R"({"type":"result","data":{"x/y":[0)";
  for (size_t i = 0; i < kLineBound.values; ++i) wide += ",0";
  EXPECT_FALSE(parse_line(wide + "]}}"));
  for (const char* none : {"", "5", "[]", "{", "\xff"}) EXPECT_FALSE(parse_line(none)) << none;
}

TEST(Events, AFailureSaysWhoSaysIt) {
  Error error =
      failure_of({{"type", "failure"}, {"code", to_string(Code::not_found)}, {"message", "no \x1b[31msuch thing"}});
  EXPECT_EQ(error.code, Code::not_found);
  EXPECT_EQ(error.message, "the interpreter inside says: no such thing");
  for (const char* code : {"denied", "unavailable", "exists", "timeout", "corrupt", "nonsense"})
    EXPECT_EQ(failure_of({{"code", code}}).code, Code::internal) << code;
  EXPECT_EQ(failure_of({{"code", 5}, {"message", 5}}).message, "the interpreter inside failed");
  EXPECT_LT(failure_of({{"message", std::string(1 << 20, 'x')}}).message.size(), 3000u);
}

}  // namespace
}  // namespace isola::interpreter
