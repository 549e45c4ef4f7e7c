// TLS servers of ours outside, and programs inside that reach them: what the tests of interception begin with.
//
//   InterceptTest has a world, a vault key, an authority that the gate trusts upstream, and a server for a.example at
//   port kSecurePort that wants "Authorization: Bearer " + kValue.
#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "base/file.h"
#include "gate/authority.h"
#include "gate/gate_fixture.h"
#include "vault/binding_wire.h"
#include "vault/seal.h"

namespace isola::gate::testing {

// What most tests of the interception allow.
inline constexpr char kAllow[] = "allow a.example:9443,9444,9080\nallow b.example:9443\n";

inline constexpr uint16_t kSecurePort = 9443, kOtherPort = 9444, kClearPort = 9080;
inline constexpr char kValue[] = "Hunter2-The-Real-Key-0123456789";
inline constexpr char kPlaceholder[] = "placeholder-7f3a9c51d2";

// One connection at a server of ours, in clear or not.
class Talk {
 public:
  Talk(Fd fd, SSL* ssl) : fd_(std::move(fd)), ssl_(ssl) {}
  ~Talk() {
    if (ssl_) SSL_shutdown(ssl_), SSL_free(ssl_);
  }
  bool say(std::string_view text) {
    while (!text.empty()) {
      int n = ssl_ ? SSL_write(ssl_, text.data(), static_cast<int>(text.size()))
                   : static_cast<int>(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL));
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  bool more() {
    char buffer[16384];
    int n =
        ssl_ ? SSL_read(ssl_, buffer, sizeof buffer) : static_cast<int>(::recv(fd_.get(), buffer, sizeof buffer, 0));
    if (n > 0) in_.append(buffer, static_cast<size_t>(n));
    return n > 0;
  }
  // A request, with its body where it has a length or is chunked; empty: none came.
  std::string request() {
    size_t end;
    while ((end = in_.find("\r\n\r\n")) == std::string::npos)
      if (!more()) return "";
    end += 4;
    std::string head = in_.substr(0, end);
    size_t body = 0;
    if (size_t at = head.find("Content-Length: "); at != std::string::npos) body = std::stoul(head.substr(at + 16));
    if (head.find("Transfer-Encoding: chunked") != std::string::npos) {
      size_t last;
      while ((last = in_.find("0\r\n\r\n", end)) == std::string::npos)
        if (!more()) return "";
      body = last + 5 - end;
    }
    while (in_.size() < end + body)
      if (!more()) return "";
    auto out = in_.substr(0, end + body);
    in_.erase(0, end + body);
    return out;
  }
  std::string rest() {
    while (more()) {
    }
    return std::exchange(in_, "");
  }
  std::string& seen() { return in_; }

 private:
  Fd fd_;
  SSL* ssl_;
  std::string in_;
};

inline std::string reply(const std::string& body, const std::string& fields = "") {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + fields + "\r\n" + body;
}

class SecureServer {
 public:
  using Serve = std::function<void(Talk&)>;
  // `leaf`: null for one that speaks in clear.
  SecureServer(const Fd& netns, const std::string& at, uint16_t port, std::shared_ptr<const Leaf> leaf, Serve serve)
      : serve_(std::move(serve)), leaf_(std::move(leaf)) {
    in_netns(netns, [&] {
      auto address = Address::parse(at)->with_port(port);
      fd_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      int one = 1;
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
      if (::bind(fd_.get(), address.get(), address.size) < 0 || ::listen(fd_.get(), 512) < 0) std::abort();
    });
    if (leaf_) {
      context_ = SSL_CTX_new(TLS_server_method());
      SSL_CTX_use_certificate(context_, leaf_->certificate.get());
      SSL_CTX_use_PrivateKey(context_, leaf_->key.get());
      SSL_CTX_set_options(context_, SSL_OP_IGNORE_UNEXPECTED_EOF);
    }
    thread_ = std::thread([this] { run(); });
  }
  ~SecureServer() {
    ::shutdown(fd_.get(), SHUT_RDWR);
    thread_.join();
    for (auto& one : talks_) one.join();
    SSL_CTX_free(context_);
  }
  size_t connections() const { return connections_; }

 private:
  void run() {
    for (;;) {
      Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd) return;
      ++connections_;
      timeval limit{20, 0};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      talks_.emplace_back([this, fd = std::move(fd)]() mutable {
        SSL* ssl = nullptr;
        if (context_) {
          ssl = SSL_new(context_);
          SSL_set_fd(ssl, fd.get());
          if (SSL_accept(ssl) != 1) return SSL_free(ssl);
        }
        Talk talk(std::move(fd), ssl);
        serve_(talk);
      });
    }
  }
  Serve serve_;
  std::shared_ptr<const Leaf> leaf_;
  Fd fd_;
  SSL_CTX* context_ = nullptr;
  std::thread thread_;
  std::vector<std::thread> talks_;
  std::atomic<size_t> connections_ = 0;
};

// A file that goes with its object.
class Scrap {
 public:
  explicit Scrap(const std::string& text) {
    int fd = ::mkstemp(path_);
    (void)!::fchmod(fd, 0644);
    (void)!::write(fd, text.data(), text.size());
    ::close(fd);
  }
  ~Scrap() { ::unlink(path_); }
  Scrap(const Scrap&) = delete;
  Scrap& operator=(const Scrap&) = delete;
  std::string path() const { return path_; }

 private:
  char path_[32] = "/tmp/isola-gate-test-XXXXXX";
};

// Inside: TLS to this name, trusting this authority; says `text` and gives back everything until the end. "tls: …" if
// there was no TLS.
inline std::string secure_talk(const std::string& name, uint16_t port, const std::string& authority,
                               const std::string& text, const std::string& server_name = "",
                               const std::string& alpn = "", bool hang_up = false) {
  Fd fd = dial(resolve(name), port);
  if (!fd) return "no connection";
  patience(fd);
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SSL_CTX_load_verify_file(context, authority.c_str());
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL* ssl = SSL_new(context);
  const auto& said = server_name.empty() ? name : server_name;
  SSL_set_tlsext_host_name(ssl, said.c_str());
  SSL_set1_host(ssl, said.c_str());
  if (!alpn.empty()) {
    std::string wire = static_cast<char>(alpn.size()) + alpn;
    SSL_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(wire.data()), static_cast<unsigned>(wire.size()));
  }
  SSL_set_fd(ssl, fd.get());
  if (SSL_connect(ssl) != 1) {
    char why[200];
    ERR_error_string_n(ERR_peek_last_error(), why, sizeof why);
    return "tls: "s + why;
  }
  (void)SSL_write(ssl, text.data(), static_cast<int>(text.size()));
  if (hang_up) SSL_shutdown(ssl);
  std::string out;
  char buffer[16384];
  for (int n; (n = SSL_read(ssl, buffer, sizeof buffer)) > 0;) out.append(buffer, static_cast<size_t>(n));
  return out;
}

// Inside: a program by the shell, and what it printed.
inline std::string shell(const std::string& command) {
  FILE* pipe = ::popen(("{ " + command + "\n} 2>&1").c_str(), "r");
  if (!pipe) return "no shell";
  std::string out;
  char buffer[4096];
  for (size_t n; (n = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) out.append(buffer, n);
  ::pclose(pipe);
  return out;
}

class InterceptTest : public GateTest {
 protected:
  void SetUp() override {
    GateTest::SetUp();
    if (IsSkipped()) return;
    ::signal(SIGPIPE, SIG_IGN);  // of OpenSSL's writes
    upstream_authority.emplace(Authority::make(std::string(32, 'u'), "upstream").value());
    trusted.emplace(upstream_authority->pem());
    world->stop_gate();
    world->start_gate({.authorities = trusted->path()});
    key.emplace(vault::KeyPair::make().value());
    ASSERT_EQ(world->give_key(key->secret_key().view()), "");
  }
  void TearDown() override { servers.clear(); }

  vault::Binding bearer(const std::string& name = "a.example") {
    vault::Binding out;
    out.id = "b1";
    out.secret = "token";
    out.names = {name};
    out.ports = std::to_string(kSecurePort);
    out.sealed = vault::seal(key->open_key(), kValue).value();
    return out;
  }
  static std::string encoded(const std::vector<vault::Binding>& bindings) { return vault::encode_bindings(bindings); }

  SecureServer& serve(const std::string& name, uint16_t port, SecureServer::Serve how) {
    auto leaf = name.empty() ? nullptr : upstream_authority->leaf(name).value();
    servers.push_back(
        std::make_unique<SecureServer>(world->outside_netns(), "203.0.113.10", port, leaf, std::move(how)));
    return *servers.back();
  }
  // Answers each request with `how` of it, and remembers it.
  SecureServer& serve_requests(std::function<std::string(const std::string&)> how,
                               const std::string& name = "a.example", uint16_t port = kSecurePort) {
    return serve(name, port, [this, how = std::move(how)](Talk& talk) {
      for (std::string one; !(one = talk.request()).empty();) {
        {
          std::lock_guard lock(mutex);
          requests.push_back(one);
        }
        if (!talk.say(how(one)) || one.find("Connection: close\r\n") != std::string::npos) return;
      }
    });
  }
  SecureServer& serve_key() {
    return serve_requests([](const std::string& request) {
      return request.find("Authorization: Bearer "s + kValue + "\r\n") != std::string::npos
                 ? reply("welcome")
                 : "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno";
    });
  }
  std::vector<std::string> seen() {
    std::lock_guard lock(mutex);
    return requests;
  }
  // A box whose authority's certificate is in a file.
  Box inside(const std::string& policy, const std::vector<vault::Binding>& bindings = {}) {
    Box box = world->box(policy, "", encoded(bindings));
    authority.emplace(world->certificate(box));
    return box;
  }
  std::string ask(const Box& box, const std::string& text, const std::string& name = "a.example",
                  uint16_t port = kSecurePort) {
    return box.run([&] { return secure_talk(name, port, authority->path(), text); });
  }
  static std::string get(const std::string& target, const std::string& fields = "") {
    return "GET " + target + " HTTP/1.1\r\nHost: a.example:9443\r\nConnection: close\r\n" + fields + "\r\n";
  }
  static std::string status(const std::string& answer) { return answer.substr(0, answer.find("\r\n")); }

  std::optional<Authority> upstream_authority;
  std::optional<Scrap> trusted, authority;
  std::optional<vault::KeyPair> key;
  std::mutex mutex;
  std::vector<std::string> requests;
  std::vector<std::unique_ptr<SecureServer>> servers;
};

}  // namespace isola::gate::testing
