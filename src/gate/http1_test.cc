// Heads and bodies of HTTP/1 without a socket.
#include <gtest/gtest.h>

#include "gate/http1_body.h"
#include "gate/http1_head.h"

namespace isola::gate {
namespace {

TEST(Http1Head, ARequest) {
  auto head = parse_request_head(
      "POST /x?y HTTP/1.1\r\nHost: a.example\r\nX-One:  two words \r\nContent-Length: 12\r\nconnection: Keep-Alive, "
      "Upgrade\r\nUpgrade: WebSocket\r\nExpect: 100-Continue\r\n\r\n");
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->method + head->target + head->host, "POST/x?ya.example");
  EXPECT_EQ(*find_field(head->fields, "x-one"), "two words");
  EXPECT_EQ(head->length, 12u);
  EXPECT_EQ(head->upgrade, "websocket");
  EXPECT_TRUE(head->keep_alive && head->expects_continue && !head->chunked);
  EXPECT_FALSE(parse_request_head("GET / HTTP/1.0\r\n\r\n")->keep_alive);
  EXPECT_FALSE(parse_request_head("GET / HTTP/1.1\r\nHost: x\r\nConnection: a, close\r\n\r\n")->keep_alive);
}

TEST(Http1Head, AnAnswer) {
  auto head = parse_response_head("HTTP/1.1 404 Not Found\r\nTransfer-Encoding: Chunked\r\n\r\n");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->status, 404);
  EXPECT_EQ(head->phrase, "Not Found");
  EXPECT_TRUE(head->chunked);
  EXPECT_TRUE(parse_response_head("HTTP/1.1 200\r\n\r\n"));
  for (const char* bad :
       {"HTTP/1.1 20\r\n\r\n", "HTTP/1.1 2000\r\n\r\n", "HTTP/1.1  200\r\n\r\n", "HTTP/1.2 200\r\n\r\n",
        "HTTP/1.1 099 x\r\n\r\n", "HTTP/1.1 -10 x\r\n\r\n", "HTTP/1.1 200 a\x01\r\n\r\n", "200\r\n\r\n"})
    EXPECT_FALSE(parse_response_head(bad)) << bad;
}

TEST(Http1Head, TheEndIsFoundWhereverPiecesEnd) {
  const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\nrest";
  HeadEnd end;
  for (size_t i = 0; i < text.size() - 4; ++i) {
    ASSERT_EQ(end.feed(std::string_view(text).substr(0, i)), false) << i;
  }
  EXPECT_TRUE(end.feed(text));
  EXPECT_EQ(end.size(), text.size() - 4);
  // For a careless reader this is the end of a head: here, too, and then it is a bad one.
  HeadEnd bare;
  EXPECT_TRUE(bare.feed("GET / HTTP/1.1\nHost: x\n\nGET /y HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(bare.size(), 24u);
}

TEST(Http1Head, FieldsBetweenNeighbours) {
  Fields fields = {{"Connection", "close, X-A ,x-b,Host,Content-Length"},
                   {"x-a", "1"},
                   {"X-B", "1"},
                   {"Host", "h"},
                   {"Content-Length", "1"},
                   {"Keep-Alive", "1"},
                   {"Upgrade", "h2c"},
                   {"X-C", "1"}};
  remove_hop_fields(fields);
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[2].name, "X-C");
}

std::string read_all(BodyReader reader, std::string_view input, size_t step, std::string* problem = nullptr) {
  std::string out, waiting;
  for (size_t at = 0; at < input.size() && !reader.done();) {
    waiting += input.substr(at, step);
    at += step;
    for (;;) {
      auto piece = reader.feed(waiting);
      if (!piece) {
        if (problem) *problem = piece.error().message;
        return out;
      }
      out += piece->data;
      waiting.erase(0, piece->used);
      if (piece->used == 0 || reader.done()) break;
    }
  }
  if (reader.done()) out += "|" + waiting;
  return out;
}

TEST(Http1Body, ChunksInPiecesOfAnySize) {
  const std::string text = "5;x=\"y\"\r\nabcde\r\n0A\r\n0123456789\r\n0\r\nX: y\r\n\r\n";
  for (size_t step = 1; step <= text.size(); ++step)
    EXPECT_EQ(read_all(BodyReader::chunked(), text, step), "abcde0123456789|") << step;
  EXPECT_EQ(read_all(BodyReader::chunked(), text + "next", text.size() + 4), "abcde0123456789|next");
  EXPECT_EQ(read_all(BodyReader::of_length(3), "abcdef", 6), "abc|def");
  EXPECT_EQ(read_all(BodyReader::until_end(), "abcdef", 2), "abcdef");
  EXPECT_TRUE(BodyReader::none().done());
}

TEST(Http1Body, BadChunks) {
  for (const char* bad :
       {"g\r\n", "\r\n", "5\nabcde", "5 \r\nabcde", " 5\r\n", "+5\r\n", "-5\r\n", "0x5\r\n", "1234567890abcdef1\r\n",
        "5\r\nabcdeX\r\n", "5\r\nabcde\n0\r\n\r\n", "5;a\rb\r\n", "0\r\nX: y\n\r\n", "0\r\n\n"}) {
    std::string problem;
    read_all(BodyReader::chunked(), bad, 100, &problem);
    EXPECT_NE(problem, "") << bad;
  }
  std::string problem;
  read_all(BodyReader::chunked(), std::string(5000, '1'), 100, &problem);
  EXPECT_NE(problem, "");
  problem.clear();
  std::string trailers = "0\r\n";
  for (int i = 0; i < 20; ++i) trailers += "X: " + std::string(1000, 'x') + "\r\n";
  read_all(BodyReader::chunked(), trailers, 100, &problem);
  EXPECT_NE(problem, "");
}

}  // namespace
}  // namespace isola::gate
