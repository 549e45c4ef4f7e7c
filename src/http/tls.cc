#include "http/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

namespace isola::http {

namespace {

// HTTP/1.1 is what we speak; a client that offers only others gets no protocol rather than a wrong one.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in, unsigned in_size,
                    void*) {
  static const unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (::SSL_select_next_proto(&chosen, size, kOurs, sizeof kOurs - 1, in, in_size) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Result<std::shared_ptr<boost::asio::ssl::context>> server_tls(const TlsFiles& files) {
  auto context = std::make_shared<boost::asio::ssl::context>(boost::asio::ssl::context::tls_server);
  SSL_CTX* raw = context->native_handle();
  ::SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  ::SSL_CTX_set_options(raw, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  ::SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);  // an idle connection keeps no 32 KiB of buffers
  ::SSL_CTX_set_alpn_select_cb(raw, choose_protocol, nullptr);
  boost::system::error_code ec;
  context->use_certificate_chain_file(files.certificate, ec);
  if (ec) return fail(Code::invalid, "cannot use the certificate " + files.certificate + ": " + ec.message());
  context->use_private_key_file(files.key, boost::asio::ssl::context::pem, ec);
  if (ec) return fail(Code::invalid, "cannot use the private key " + files.key + ": " + ec.message());
  if (::SSL_CTX_check_private_key(raw) != 1) {
    ::ERR_clear_error();
    return fail(Code::invalid,
                "the private key " + files.key + " does not belong to the certificate " + files.certificate);
  }
  return context;
}

}  // namespace isola::http
