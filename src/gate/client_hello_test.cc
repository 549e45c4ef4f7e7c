#include "gate/client_hello.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

using State = ClientHelloReader::State;

std::string number(size_t value, size_t bytes) {
  std::string out;
  for (size_t i = bytes; i-- > 0;) out.push_back(static_cast<char>(value >> 8 * i));
  return out;
}
std::string sized(const std::string& body, size_t bytes) { return number(body.size(), bytes) + body; }
std::string extension(size_t kind, const std::string& body) { return number(kind, 2) + sized(body, 2); }
std::string sni(const std::string& name) { return extension(0, sized(number(0, 1) + sized(name, 2), 2)); }
std::string hello(const std::string& extensions) {
  std::string body = number(0x0303, 2) + std::string(32, 'r') + sized(std::string(32, 's'), 1) +
                     sized(number(0x1301, 2), 2) + sized(std::string(1, '\0'), 1) + sized(extensions, 2);
  return number(1, 1) + sized(body, 3);
}
std::string in_records(const std::string& message, size_t each) {
  std::string out;
  for (size_t at = 0; at < message.size(); at += each)
    out += std::string("\x16\x03\x01", 3) + sized(message.substr(at, each), 2);
  return out;
}
State feed_in_pieces(ClientHelloReader& reader, const std::string& bytes, size_t each) {
  for (size_t at = 0; at < bytes.size(); at += each) reader.feed(std::string_view(bytes).substr(at, each));
  return reader.state();
}

TEST(ClientHello, NameProtocolsAndEch) {
  ClientHelloReader reader;
  auto alpn = extension(16, sized(sized("h2", 1) + sized("http/1.1", 1), 2));
  ASSERT_EQ(reader.feed(in_records(hello(sni("Api.Example.org") + alpn), 16000)), State::done) << reader.problem();
  EXPECT_EQ(reader.hello().server_name, "api.example.org");
  EXPECT_EQ(reader.hello().alpn, (std::vector<std::string>{"h2", "http/1.1"}));
  EXPECT_FALSE(reader.hello().ech);
  ClientHelloReader hidden;
  ASSERT_EQ(hidden.feed(in_records(hello(sni("a.example") + extension(0xfe0d, "x")), 16000)), State::done);
  EXPECT_TRUE(hidden.hello().ech);
  ClientHelloReader none;
  ASSERT_EQ(none.feed(in_records(hello(alpn), 16000)), State::done);
  EXPECT_EQ(none.hello().server_name, "");
}

TEST(ClientHello, AnySplitGivesTheSame) {
  auto message = hello(extension(41, std::string(3000, 'p')) + sni("split.example"));
  for (size_t record : {1, 2, 3, 5, 100, 1000, 16000})
    for (size_t segment : {1, 2, 7, 1000, 100000}) {
      ClientHelloReader reader;
      auto state = feed_in_pieces(reader, in_records(message, record), segment);
      ASSERT_EQ(state, State::done) << record << " " << segment << " " << reader.problem();
      EXPECT_EQ(reader.hello().server_name, "split.example");
    }
}

TEST(ClientHello, EveryPrefixWantsMore) {
  auto bytes = in_records(hello(sni("a.example")), 40);
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    ClientHelloReader reader;
    EXPECT_EQ(reader.feed(std::string_view(bytes).substr(0, i)), State::more) << i;
  }
}

TEST(ClientHello, HugeOnesAreReadUpToTheBound) {
  ClientHelloReader fits;
  EXPECT_EQ(fits.feed(in_records(hello(extension(41, std::string(60000, 'p')) + sni("big.example")), 16000)),
            State::done)
      << fits.problem();
  EXPECT_EQ(fits.hello().server_name, "big.example");
  ClientHelloReader endless;
  EXPECT_EQ(endless.feed(in_records(number(1, 1) + number(0x20000, 3), 16000)), State::bad);
}

TEST(ClientHello, OtherProtocolsAreNotTls) {
  using namespace std::string_view_literals;
  for (auto other : {"GET / HTTP/1.1\r\n"sv, "SSH-2.0-x\r\n"sv, "\0\0\0\x08\x04\xd2\x16\x2f"sv, "\x80\x01\x02\x03"sv}) {
    ClientHelloReader reader;
    EXPECT_EQ(reader.feed(other), State::not_tls);
  }
}

TEST(ClientHello, OddOnesAreBad) {
  using namespace std::string_literals;
  auto two = extension(0, sized(number(0, 1) + sized("a.example", 2) + number(0, 1) + sized("b.example", 2), 2));
  std::string cases[] = {
      hello(sni("a.example") + sni("b.example")),                   // the extension twice
      hello(two),                                                   // two names in one
      hello(sni("a\0.example"s)),                                   // NUL
      hello(sni("a.example.")),                                     // a dot at the end
      hello(sni("")),                                               // empty
      hello(sni("127.0.0.1")),                                      // an address
      hello(sni("b\xc3\xbc.example")),                              // not ASCII
      hello(extension(0, "")),                                      // nothing in it
      hello(extension(0, sized(number(1, 1) + sized("a", 2), 2))),  // another kind of name
      hello("\0\0\0"s),                                             // cut off
      hello(extension(16, sized(std::string(1, '\0'), 2))),         // an empty protocol
      number(2, 1) + sized("x", 3),                                 // another message
      hello(sni("a.example")) + "x",                                // more behind it
  };
  for (const auto& message : cases) {
    ClientHelloReader reader;
    EXPECT_EQ(reader.feed(in_records(message, 16000)), State::bad) << &message - cases;
  }
  ClientHelloReader empty_record;
  EXPECT_EQ(empty_record.feed("\x16\x03\x01\0\0"s), State::bad);
  for (const auto& first : {"\x15\x03\x01\x00\x02\x01\x70"s, "\x14\x03\x03\x00\x01\x01"s, "\x80\x2e\x01\x03\x01"s,
                            "\x80\x2e\x01\x00\x02"s}) {
    ClientHelloReader before;
    EXPECT_EQ(before.feed(first + in_records(hello(sni("a.example")), 16000)), State::bad);
  }
  // Some servers look at no version in a record's head.
  for (const auto& head : {"\x16\x02"s, "\x16\x00"s, "\x16\x7f"s, "\x15\x04"s}) {
    ClientHelloReader reader;
    EXPECT_EQ(reader.feed(head + in_records(hello(sni("a.example")), 16000).substr(2)), State::bad);
  }
  ClientHelloReader alert;
  EXPECT_EQ(alert.feed(in_records(hello(sni("a.example")), 10).substr(0, 15) + "\x15\x03\x01"), State::bad);
}

}  // namespace
}  // namespace isola::gate
