#include "boundary/microvm/monitor.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace isola::boundary::microvm {

namespace {

constexpr size_t kMostLine = 64 << 10;
constexpr size_t kMostReason = 300;
constexpr size_t kSecretDigits = 16;  // of an id: "secret-number-command"

// It may hold names that the sandbox chose.
std::string plain(std::string text) {
  text.resize(std::min(text.size(), kMostReason));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  return text;
}

}  // namespace

std::string text_in(std::string_view line, std::string_view word) {
  const std::string label = fmt::format("\"{}\":", word);
  size_t at = line.find(label);
  if (at == std::string_view::npos) return "";
  at = line.find_first_not_of(' ', at + label.size());
  if (at == std::string_view::npos || line[at] != '"') return "";
  const size_t end = line.find('"', at + 1);
  return end == std::string_view::npos ? "" : std::string(line.substr(at + 1, end - at - 1));
}

Result<std::optional<std::string>> Monitor::next_line(Moment deadline) {
  for (;;) {
    if (size_t end = heard_.find('\n'); end != std::string::npos) {
      std::string line = heard_.substr(0, end);
      heard_.erase(0, end + 1);
      return std::optional(std::move(line));
    }
    if (heard_.size() > kMostLine) return fail(Code::corrupt, "QEMU's monitor says too much");
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ready{socket_.get(), POLLIN, 0};
    const int n = ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::optional<std::string>();
    char some[4096];
    const ssize_t got = ::recv(socket_.get(), some, sizeof some, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return fail(Code::unavailable, "QEMU has ended");
    heard_.append(some, static_cast<size_t>(got));
  }
}

// The descriptor goes with the first byte. (Whoever has gone away must not take us along: no SIGPIPE.)
Result<void> Monitor::send(std::string_view line, int descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  while (!line.empty()) {
    iovec piece{.iov_base = const_cast<char*>(line.data()), .iov_len = line.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof descriptor);
      std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    }
    pollfd room{socket_.get(), POLLOUT, 0};
    if (::poll(&room, 1, static_cast<int>(patience_.count())) == 0)
      return fail(Code::timeout, "QEMU's monitor does not listen");
    const ssize_t n = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return fail(Code::unavailable, "QEMU has ended");
    descriptor = -1;
    line.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<void> Monitor::greet() {
  if (::getrandom(&secret_, sizeof secret_, 0) != static_cast<ssize_t>(sizeof secret_))
    return sys_error("cannot draw a number");
  auto met = tell("qmp_capabilities");
  // "Capabilities negotiation is already complete" is good as well.
  if (!met && met.error().code != Code::unsupported) return std::unexpected(met.error());
  return {};
}

Result<std::string> Monitor::begin(std::string_view command, std::string_view arguments, int descriptor) {
  std::string id = fmt::format("{:016x}-{}-{}", secret_, ++count_, command);
  const std::string line = fmt::format(R"({{"execute":"{}"{}{},"id":"{}"}})"
                                       "\n",
                                       command, arguments.empty() ? "" : ",\"arguments\":", arguments, id);
  ISOLA_CHECK(send(line, descriptor));
  return id;
}

Result<std::optional<std::string>> Monitor::answer_until(const std::string& id, Moment deadline) {
  for (;;) {
    ISOLA_TRY(auto line, next_line(deadline));
    if (!line) return line;
    if (text_in(*line, "id") != id) {  // news, or an answer that somebody else waited for
      if (std::chrono::steady_clock::now() > deadline + patience_)
        return fail(Code::timeout, "QEMU's monitor does not answer");
      continue;
    }
    if (line->find("\"error\":") == std::string::npos) return line;
    const std::string_view command = std::string_view(id).substr(id.find('-', kSecretDigits + 1) + 1);
    return fail(Code::unsupported, fmt::format("QEMU: {}: {}", command, plain(text_in(*line, "desc"))));
  }
}

Result<std::optional<std::string>> Monitor::answer(const std::string& id) {
  return answer_until(id, std::chrono::steady_clock::now());
}

Result<std::string> Monitor::tell(std::string_view command, std::string_view arguments, int descriptor) {
  ISOLA_TRY(const std::string id, begin(command, arguments, descriptor));
  ISOLA_TRY(auto line, answer_until(id, std::chrono::steady_clock::now() + patience_));
  if (!line) return fail(Code::timeout, "QEMU's monitor does not answer");
  return std::move(*line);
}

}  // namespace isola::boundary::microvm
