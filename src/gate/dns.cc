#include "gate/dns.h"

#include <charconv>
#include <vector>

#include "gate/name.h"

namespace isola::gate {

namespace {

constexpr size_t kHead = 12;
constexpr uint16_t kReplyBit = 0x8000, kOpcodeMask = 0x7800, kTruncated = 0x0200, kRecursionDesired = 0x0100,
                   kRecursionAvailable = 0x0080;
constexpr uint16_t kClassIn = 1;
constexpr uint16_t kExtendedError = 15, kProhibited = 18;
constexpr size_t kMaxWhy = 120;

uint16_t get16(std::string_view in, size_t at) {
  return static_cast<uint16_t>(static_cast<uint8_t>(in[at]) << 8 | static_cast<uint8_t>(in[at + 1]));
}
void put16(std::string& out, size_t value) {
  out.push_back(static_cast<char>(value >> 8));
  out.push_back(static_cast<char>(value));
}
void put32(std::string& out, uint32_t value) { put16(out, value >> 16), put16(out, value & 0xffff); }

// A record that answers the question: its name is a pointer to the question behind the head.
void put_record(std::string& out, DnsType type, uint32_t ttl, std::string_view content) {
  put16(out, 0xc000 | kHead);
  put16(out, static_cast<uint16_t>(type));
  put16(out, kClassIn);
  put32(out, ttl);
  put16(out, content.size());
  out.append(content);
}

std::string in_labels(std::string_view name) {
  std::string out;
  while (!name.empty()) {
    auto label = name.substr(0, name.find('.'));
    out.push_back(static_cast<char>(label.size()));
    out.append(label);
    name.remove_prefix(std::min(label.size() + 1, name.size()));
  }
  out.push_back('\0');
  return out;
}

// Reads a name without compression; `text` gets it with dots, or nothing if a label has a dot or other odd byte in it.
bool read_labels(std::string_view in, size_t& at, std::string& text, bool& plain) {
  plain = true;
  size_t begin = at;
  for (;;) {
    if (at >= in.size()) return false;
    auto size = static_cast<uint8_t>(in[at++]);
    if (size == 0) break;
    if (size > kMaxLabel || in.size() - at < size || at - begin > 255) return false;
    if (!text.empty()) text.push_back('.');
    auto label = in.substr(at, size);
    if (label.find('.') != std::string_view::npos) plain = false;
    text.append(label);
    at += size;
  }
  return at - begin <= 255;
}

}  // namespace

QueryState parse_query(std::string_view in, DnsQuestion& out) {
  out = DnsQuestion();
  if (in.size() < kHead) return QueryState::ignore;
  out.id = get16(in, 0);
  uint16_t flags = get16(in, 2);
  if (flags & kReplyBit) return QueryState::ignore;  // answering answers makes loops
  out.recursion_desired = (flags & kRecursionDesired) != 0;
  if ((flags & kOpcodeMask) != 0) {
    out.problem = DnsCode::not_implemented;
    return QueryState::answer_error;
  }
  uint16_t questions = get16(in, 4), answers = get16(in, 6), authorities = get16(in, 8), extras = get16(in, 10);
  if (in.size() > kMaxDnsMessage || questions != 1 || answers != 0 || authorities != 0 || extras > 2 ||
      (flags & kTruncated))
    return QueryState::answer_error;
  size_t at = kHead;
  std::string text;
  bool plain = false;
  if (!read_labels(in, at, text, plain) || in.size() - at < 4) return QueryState::answer_error;
  out.type = get16(in, at);
  uint16_t question_class = get16(in, at + 2);
  at += 4;
  out.raw = std::string(in.substr(kHead, at - kHead));
  for (uint16_t i = 0; i < extras; ++i) {
    std::string owner;
    bool ignored = false;
    if (!read_labels(in, at, owner, ignored) || in.size() - at < 10) return QueryState::answer_error;
    if (get16(in, at) == static_cast<uint16_t>(DnsType::opt)) out.edns = true;
    size_t size = get16(in, at + 8);
    at += 10;
    if (in.size() - at < size) return QueryState::answer_error;
    at += size;
  }
  // What a client hides behind its question could only be meant for somebody who is not us.
  if (at != in.size()) return QueryState::answer_error;
  if (question_class != kClassIn) {
    out.problem = DnsCode::not_implemented;
    return QueryState::answer_error;
  }
  if (auto name = normal_name(text); name && plain) {
    out.name = std::move(*name);
    out.is_name = true;
  }
  return QueryState::good;
}

std::string build_reply(const DnsQuestion& question, const DnsReply& reply) {
  bool has_record = reply.code == DnsCode::ok && (reply.address || !reply.pointer.empty());
  std::string out;
  put16(out, question.id);
  put16(out, kReplyBit | (question.recursion_desired ? kRecursionDesired : 0) | kRecursionAvailable |
                 static_cast<uint16_t>(reply.code));
  put16(out, question.raw.empty() ? 0 : 1);
  put16(out, has_record ? 1 : 0);
  put16(out, 0);
  put16(out, question.edns ? 1 : 0);
  out += question.raw;
  if (has_record && reply.address) {
    const auto& bytes = reply.address->bytes();
    std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (reply.address->is_v4())
      put_record(out, DnsType::a, reply.ttl, all.substr(12));
    else
      put_record(out, DnsType::aaaa, reply.ttl, all);
  } else if (has_record) {
    put_record(out, DnsType::ptr, reply.ttl, in_labels(reply.pointer));
  }
  if (question.edns) {
    std::string options;
    if (!reply.why.empty() && out.size() + kMaxWhy + 20 <= 512) {
      auto why = std::string_view(reply.why).substr(0, kMaxWhy);
      put16(options, kExtendedError);
      put16(options, 2 + why.size());
      put16(options, kProhibited);
      options.append(why);
    }
    out.push_back('\0');
    put16(out, static_cast<uint16_t>(DnsType::opt));
    put16(out, 1232);  // the size of answers that we could take
    put32(out, 0);
    put16(out, options.size());
    out += options;
  }
  return out;
}

std::optional<Address> address_of_pointer(std::string_view name) {
  std::vector<std::string_view> labels;
  auto split = [&](std::string_view text) {
    while (!text.empty() && labels.size() < 33) {
      labels.push_back(text.substr(0, text.find('.')));
      text.remove_prefix(std::min(labels.back().size() + 1, text.size()));
    }
  };
  if (name.ends_with(".in-addr.arpa")) {
    split(name.substr(0, name.size() - 13));
    if (labels.size() != 4) return std::nullopt;
    std::string text;
    for (size_t i = 4; i-- > 0;) text += std::string(labels[i]) + (i ? "." : "");
    auto address = Address::parse(text);
    return address ? std::optional(*address) : std::nullopt;
  }
  if (!name.ends_with(".ip6.arpa")) return std::nullopt;
  split(name.substr(0, name.size() - 9));
  if (labels.size() != 32) return std::nullopt;
  std::array<uint8_t, 16> bytes{};
  for (size_t i = 0; i < 32; ++i) {
    uint8_t nibble = 0;
    auto label = labels[31 - i];
    auto [end, bad] = std::from_chars(label.data(), label.data() + label.size(), nibble, 16);
    if (bad != std::errc() || label.size() != 1) return std::nullopt;
    bytes[i / 2] = static_cast<uint8_t>(bytes[i / 2] << 4 | nibble);
  }
  return Address::v6(bytes);
}

Result<std::optional<std::string>> take_framed(std::string& stream) {
  if (stream.size() < 2) return std::nullopt;
  size_t size = get16(stream, 0);
  if (size > kMaxDnsMessage) return fail(Code::invalid, "a DNS message over TCP is too large");
  if (stream.size() < 2 + size) return std::nullopt;
  std::string message = stream.substr(2, size);
  stream.erase(0, 2 + size);
  return message;
}

std::string framed(std::string_view message) {
  std::string out;
  put16(out, message.size());
  out.append(message);
  return out;
}

}  // namespace isola::gate
