#include "interpreter/agent/message.h"

#include <gtest/gtest.h>

namespace isola::interpreter {
namespace {

// As a kernel sends it: an identity stands before the delimiter.
Frames from_kernel(const Signer& signer, const std::string& type, const Json& content) {
  Frames frames = signer.pack(type, content, "m1");
  frames.insert(frames.begin(), "identity");
  return frames;
}

TEST(Message, WhatWasPackedIsUnpacked) {
  Signer signer("key", "session");
  auto message = signer.unpack(from_kernel(signer, "stream", {{"name", "stdout"}, {"text", "ü"}}));
  ASSERT_TRUE(message) << message.error().message;
  EXPECT_EQ(message->type, "stream");
  EXPECT_EQ(message->content["text"], "ü");
  EXPECT_EQ(message->parent, "");
}

TEST(Message, HasSixPartsAndAnEmptyParent) {
  Signer signer("Jefe", "session");
  Frames frames = signer.pack("x", Json::object(), "m");
  ASSERT_EQ(frames.size(), 6u);
  EXPECT_EQ(frames[0], "<IDS|MSG>");
  EXPECT_EQ(frames[1].size(), 64u);
  EXPECT_EQ(frames[3], "{}");
}

TEST(Message, AWrongSignatureIsRefused) {
  Signer signer("key", "session"), stranger("other", "session");
  EXPECT_EQ(signer.unpack(stranger.pack("stream", Json::object(), "m")).error().code, Code::denied);
  Frames changed = signer.pack("stream", {{"text", "a"}}, "m");
  changed[5] = R"({"text":"b"})";
  EXPECT_EQ(signer.unpack(changed).error().code, Code::denied);
  Frames with_parent = signer.pack("stream", Json::object(), "m");
  with_parent[3] = R"({"msg_id":"forged"})";
  EXPECT_EQ(signer.unpack(with_parent).error().code, Code::denied);
}

TEST(Message, MalformedOnesAreRefused) {
  Signer signer("key", "session");
  EXPECT_EQ(signer.unpack({}).error().code, Code::corrupt);
  EXPECT_EQ(signer.unpack({"<IDS|MSG>", "x"}).error().code, Code::corrupt);
  EXPECT_EQ(signer.unpack({"a", "b", "c", "d", "e", "f", "g"}).error().code, Code::corrupt);
}

// A value is copied and written by recursion: eighty thousand brackets in a row would be the end of this program.
TEST(Message, WhatIsTooDeepOrTooLargeANumberIsKnownAsLost) {
  Signer signer("key", "session");
  auto with_content = [&](const std::string& content) {
    Frames frames = signer.pack("display_data", Json::object(), "m");
    frames[5] = content;
    frames[3] = R"({"msg_id":"asked"})";
    frames[1] = signer.sign(&frames[2]);
    return signer.unpack(frames);
  };
  for (const std::string& content : {"{\"data\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
                                     "{\"a\":1" + std::string(400, '0') + "}", std::string("[]"), std::string("{"),
                                     "{\"a\":[0" + std::string(2'000'000, ',') + "]}"}) {
    auto message = with_content(content);
    ASSERT_TRUE(message) << message.error().message;
    EXPECT_EQ(message->type, "display_data");
    EXPECT_EQ(message->parent, "asked");
    EXPECT_NE(message->unreadable, "") << content.substr(0, 50);
    EXPECT_TRUE(message->content.is_object());
  }
  EXPECT_EQ(with_content("{\"a\":\"\xff\"}")->content["a"], "\uFFFD") << "text that is none is mended";
  EXPECT_EQ(with_content("{}")->unreadable, "");
}

TEST(Message, KeysAreNotTheSameTwice) {
  EXPECT_EQ(random_hex(32).size(), 64u);
  EXPECT_NE(random_hex(32), random_hex(32));
}

}  // namespace
}  // namespace isola::interpreter
