#include "http/blocking_stream.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

namespace isola::http {

namespace {

using std::chrono::milliseconds;

struct Freer {
  void operator()(SSL* ssl) const { ::SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

std::string tls_words() {
  char text[256] = "unknown";
  if (unsigned long e = ::ERR_get_error()) ::ERR_error_string_n(e, text, sizeof text);
  ::ERR_clear_error();
  return text;
}

Result<void> wait_for(int fd, short events, milliseconds time) {
  pollfd p{fd, events, 0};
  for (;;) {
    int n = ::poll(&p, 1, time.count() < 0 ? -1 : static_cast<int>(time.count()));
    if (n > 0) return {};
    if (n == 0) return fail(Code::timeout, "the server did not answer in time");
    if (errno != EINTR) return sys_error("cannot wait for the server");
  }
}

Result<Fd> connect_one(const addrinfo& at, milliseconds time) {
  Fd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return sys_error("cannot open a socket");
  int on = 1;
  (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd.get(), at.ai_addr, at.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return sys_error("cannot connect");
  ISOLA_CHECK(wait_for(fd.get(), POLLOUT, time));
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error) return sys_error("cannot connect", error);
  return fd;
}

}  // namespace

struct BlockingStream::Tls {
  std::unique_ptr<SSL_CTX, Freer> context;
  std::unique_ptr<SSL, Freer> ssl;
};

BlockingStream::BlockingStream(Fd fd, std::unique_ptr<Tls> tls) : fd_(std::move(fd)), tls_(std::move(tls)) {}
BlockingStream::~BlockingStream() {
  if (tls_) ::SSL_shutdown(tls_->ssl.get());
}

Result<std::unique_ptr<BlockingStream>> BlockingStream::connect(const Url& url, const ClientOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* raw = nullptr;
  if (int e = ::getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &raw); e != 0) {
    return fail(Code::unavailable, "cannot find " + url.host + ": " + ::gai_strerror(e));
  }
  std::unique_ptr<addrinfo, Freer> list(raw);
  Result<Fd> fd = fail(Code::unavailable, "no address");
  for (const addrinfo* at = list.get(); at && !fd; at = at->ai_next) {
    if (options.may_dial && !options.may_dial(at->ai_addr)) {
      fd = fail(Code::denied, "it leads to an address that it may not");
      continue;
    }
    fd = connect_one(*at, options.connect_time);
  }
  if (!fd) return std::unexpected(fd.error().in(url.authority()));

  std::unique_ptr<Tls> tls;
  if (url.tls) {
    tls = std::make_unique<Tls>();
    tls->context.reset(::SSL_CTX_new(::TLS_client_method()));
    SSL_CTX* context = tls->context.get();
    ::SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    if (!options.ca_file.empty()) {
      if (::SSL_CTX_load_verify_locations(context, options.ca_file.c_str(), nullptr) != 1) {
        return fail(Code::invalid, "cannot use the certificates in " + options.ca_file + ": " + tls_words());
      }
    } else {
      ::SSL_CTX_set_default_verify_paths(context);
    }
    if (!options.more_authorities.empty() &&
        ::SSL_CTX_load_verify_locations(context, options.more_authorities.c_str(), nullptr) != 1)
      return fail(Code::invalid, "cannot use the certificates in " + options.more_authorities + ": " + tls_words());
    ::SSL_CTX_set_verify(context, options.verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, nullptr);
    tls->ssl.reset(::SSL_new(context));
    SSL* ssl = tls->ssl.get();
    in6_addr number;
    bool is_address =
        ::inet_pton(AF_INET, url.host.c_str(), &number) == 1 || ::inet_pton(AF_INET6, url.host.c_str(), &number) == 1;
    if (is_address) {
      ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl), url.host.c_str());
    } else {
      ::SSL_set_tlsext_host_name(ssl, url.host.c_str());
      ::SSL_set1_host(ssl, url.host.c_str());
    }
    ::SSL_set_fd(ssl, fd->get());
    for (;;) {
      int n = ::SSL_connect(ssl);
      if (n == 1) break;
      int why = ::SSL_get_error(ssl, n);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        long verdict = ::SSL_get_verify_result(ssl);
        std::string words = verdict != X509_V_OK ? ::X509_verify_cert_error_string(verdict) : tls_words();
        ::ERR_clear_error();
        return fail(Code::denied, "no TLS with " + url.authority() + ": " + words);
      }
      ISOLA_CHECK(wait_for(fd->get(), why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, options.connect_time));
    }
  }
  return std::unique_ptr<BlockingStream>(new BlockingStream(std::move(*fd), std::move(tls)));
}

Result<void> BlockingStream::wait(short events, milliseconds time) { return wait_for(fd_.get(), events, time); }

Result<size_t> BlockingStream::read(std::span<char> into, milliseconds time) {
  for (;;) {
    if (tls_) {
      int n = ::SSL_read(tls_->ssl.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), 1 << 30)));
      if (n > 0) return static_cast<size_t>(n);
      int why = ::SSL_get_error(tls_->ssl.get(), n);
      if (why == SSL_ERROR_ZERO_RETURN) return size_t{0};
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        return fail(Code::unavailable, "the connection broke: " + tls_words());
      }
      ISOLA_CHECK(wait(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, time));
    } else {
      ssize_t n = ::recv(fd_.get(), into.data(), into.size(), 0);
      if (n >= 0) return static_cast<size_t>(n);
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return sys_error("the connection broke");
      ISOLA_CHECK(wait(POLLIN, time));
    }
  }
}

Result<void> BlockingStream::write(std::string_view bytes, milliseconds time) {
  while (!bytes.empty()) {
    if (tls_) {
      int n = ::SSL_write(tls_->ssl.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 30)));
      if (n > 0) {
        bytes.remove_prefix(static_cast<size_t>(n));
        continue;
      }
      int why = ::SSL_get_error(tls_->ssl.get(), n);
      if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
        return fail(Code::unavailable, "the connection broke: " + tls_words());
      }
      ISOLA_CHECK(wait(why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, time));
    } else {
      ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n >= 0) {
        bytes.remove_prefix(static_cast<size_t>(n));
      } else if (errno == EAGAIN) {
        ISOLA_CHECK(wait(POLLOUT, time));
      } else if (errno != EINTR) {
        return sys_error("the connection broke");
      }
    }
  }
  return {};
}

void BlockingStream::shutdown_write() {
  if (tls_) ::SSL_shutdown(tls_->ssl.get());
  ::shutdown(fd_.get(), SHUT_WR);
}

}  // namespace isola::http
