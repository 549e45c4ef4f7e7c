#include "dialect/shared/tls_client.h"

#include <openssl/err.h>

#include <algorithm>
#include <climits>

namespace isola::dialect {

namespace {

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

std::unexpected<Error> tls_failed() {
  char text[256] = "the connection was cut";
  if (auto code = ERR_get_error()) ERR_error_string_n(code, text, sizeof text);
  ERR_clear_error();
  return fail(Code::corrupt, std::string("TLS: ") + text);
}

}  // namespace

Result<TlsClient> TlsClient::open(const std::string& name) {
  static const std::unique_ptr<SSL_CTX, FreeContext> context(SSL_CTX_new(TLS_client_method()));
  if (!context) return tls_failed();
  TlsClient out(SSL_new(context.get()));
  SSL* ssl = out.ssl_.get();
  if (!ssl) return tls_failed();
  SSL_set_verify(ssl, SSL_VERIFY_NONE, nullptr);
  SSL_set_options(ssl, SSL_OP_NO_RENEGOTIATION);
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  SSL_set_alpn_protos(ssl, kHttp, sizeof kHttp - 1);
  const bool address = name.find_first_not_of("0123456789.") == name.npos || name.find(':') != name.npos;
  if (!address && !name.empty()) SSL_set_tlsext_host_name(ssl, name.c_str());
  BIO *in = BIO_new(BIO_s_mem()), *sent = BIO_new(BIO_s_mem());
  if (!in || !sent) {
    BIO_free(in);
    BIO_free(sent);
    return tls_failed();
  }
  SSL_set_bio(ssl, in, sent);
  SSL_set_connect_state(ssl);
  ISOLA_CHECK(out.advance());
  return out;
}

void TlsClient::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    int n =
        BIO_write(SSL_get_rbio(ssl_.get()), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

std::string TlsClient::take() {
  BIO* out = SSL_get_wbio(ssl_.get());
  std::string bytes(BIO_ctrl_pending(out), '\0');
  int n = bytes.empty() ? 0 : BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
  bytes.resize(static_cast<size_t>(std::max(0, n)));
  return bytes;
}

bool TlsClient::ready() const { return SSL_is_init_finished(ssl_.get()) == 1; }

Result<void> TlsClient::advance() {
  ERR_clear_error();
  int done = SSL_do_handshake(ssl_.get());
  if (done == 1 || SSL_get_error(ssl_.get(), done) == SSL_ERROR_WANT_READ) return {};
  return tls_failed();
}

Result<void> TlsClient::write(std::string_view bytes) {
  while (!bytes.empty()) {
    ERR_clear_error();
    int n = SSL_write(ssl_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)));
    if (n <= 0) return tls_failed();
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

Result<std::string> TlsClient::read() {
  std::string out;
  char piece[16 << 10];
  while (!closed_ && !failed_) {
    ERR_clear_error();
    int n = SSL_read(ssl_.get(), piece, sizeof piece);
    if (n > 0) {
      out.append(piece, static_cast<size_t>(n));
      continue;
    }
    int why = SSL_get_error(ssl_.get(), n);
    if (why == SSL_ERROR_WANT_READ) break;
    if (why == SSL_ERROR_ZERO_RETURN)
      closed_ = true;
    else
      failed_ = tls_failed().error();
  }
  if (failed_ && out.empty()) return std::unexpected(*failed_);
  return out;
}

bool TlsClient::amid() const {
  const bool head_only = std::string_view(SSL_rstate_string(ssl_.get())) == "RB";  // and nothing of what it announces
  return head_only || SSL_has_pending(ssl_.get()) == 1 || BIO_ctrl_pending(SSL_get_rbio(ssl_.get())) > 0;
}

void TlsClient::close() { (void)SSL_shutdown(ssl_.get()); }

}  // namespace isola::dialect
