#include "gate/tls_leg.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <algorithm>

#include "base/file.h"
#include "gate/authority.h"
#include "gate/name.h"

namespace isola::gate {

namespace {

// Where distributions keep what they trust, as one file.
constexpr const char* kBundles[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                    "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};

std::string last_error() {
  std::string out;
  if (unsigned long code = ERR_peek_last_error()) {
    const char* text = ERR_reason_error_string(code);
    out = text ? text : "an unknown error";
  }
  ERR_clear_error();
  return out;
}

Error tls_error(const std::string& what) {
  auto detail = last_error();
  return Error{.code = Code::internal, .message = detail.empty() ? what : what + ": " + detail};
}

// ---- a BIO that is a RawWire ----------------------------------------------------------------------------------------

int bio_result(BIO* bio, const Moved& moved, int retry) {
  BIO_clear_retry_flags(bio);
  if (moved.how == Io::moved) return static_cast<int>(moved.bytes);
  if (moved.how == Io::blocked) BIO_set_flags(bio, retry | BIO_FLAGS_SHOULD_RETRY);
  return moved.how == Io::ended ? 0 : -1;
}

int bio_read(BIO* bio, char* to, int size) {
  auto* raw = static_cast<RawWire*>(BIO_get_data(bio));
  return bio_result(bio, raw->read(to, static_cast<size_t>(std::max(size, 0))), BIO_FLAGS_READ);
}

int bio_write(BIO* bio, const char* from, int size) {
  auto* raw = static_cast<RawWire*>(BIO_get_data(bio));
  return bio_result(bio, raw->write(from, static_cast<size_t>(std::max(size, 0))), BIO_FLAGS_WRITE);
}

long bio_control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

BIO_METHOD* wire_method() {
  static BIO_METHOD* method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "wire");
    if (!made) return made;
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  return method;
}

// ---- what a leg is for, kept with it --------------------------------------------------------------------------------

struct Expected {
  std::string name, protocol;
};

int expected_index() {
  static int index = SSL_get_ex_new_index(
      0, nullptr, nullptr, nullptr,
      [](void*, void* data, CRYPTO_EX_DATA*, int, long, void*) { delete static_cast<Expected*>(data); });
  return index;
}

const Expected* expected_of(const SSL* ssl) {
  return static_cast<const Expected*>(SSL_get_ex_data(ssl, expected_index()));
}

int choose_protocol(SSL* ssl, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                    unsigned int size, void*) {
  const auto* expected = expected_of(ssl);
  if (!expected || expected->protocol.empty()) return SSL_TLSEXT_ERR_NOACK;
  for (unsigned int at = 0; at < size; at += 1u + in[at]) {
    if (at + 1 + in[at] > size) break;
    if (std::string_view(reinterpret_cast<const char*>(in + at + 1), in[at]) != expected->protocol) continue;
    *out = in + at + 1, *out_size = in[at];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

// The hello was judged before it came here; one that comes after it (a server may ask for another) is judged here.
int check_name(SSL* ssl, int*, void*) {
  const auto* expected = expected_of(ssl);
  const char* said = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
  auto normal = said ? normal_name(said) : Result<std::string>(fail(Code::invalid, "no name"));
  return expected && normal && *normal == expected->name ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

// Both: nothing old, nothing that outlives the connection, buffers only while there is something in them.
bool common(SSL_CTX* context) {
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(context, 1);
  return SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) == 1;
}

Result<void> trust(SSL_CTX* context, const std::string& pem) {
  std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  if (!bio) return std::unexpected(tls_error("cannot read certificates"));
  X509_STORE* store = SSL_CTX_get_cert_store(context);
  for (;;) {
    std::unique_ptr<X509, void (*)(X509*)> one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr), X509_free);
    if (!one) break;
    if (X509_STORE_add_cert(store, one.get()) != 1) return std::unexpected(tls_error("cannot trust a certificate"));
  }
  ERR_clear_error();  // the end of the list is an error, too
  return {};
}

}  // namespace

Result<TlsSetup> TlsSetup::open(const std::string& authorities) {
  TlsSetup setup;
  for (const char* bundle : kBundles) {
    auto text = read_file(bundle);
    if (!text) continue;
    setup.trusted_ = std::move(*text);
    break;
  }
  if (!authorities.empty()) {
    ISOLA_TRY(std::string more, read_file(authorities));
    setup.trusted_ += "\n" + more;
  }
  // While files may still be opened: OpenSSL reads its configuration, and gathers what it needs for random numbers.
  if (OPENSSL_init_ssl(0, nullptr) != 1) return std::unexpected(tls_error("cannot start OpenSSL"));
  unsigned char byte;
  if (RAND_bytes(&byte, 1) != 1) return std::unexpected(tls_error("no random numbers"));
  return setup;
}

Result<void> TlsSetup::prepare() {
  if (client_) return {};
  Context client(SSL_CTX_new(TLS_client_method())), server(SSL_CTX_new(TLS_server_method()));
  if (!client || !server || !common(client.get()) || !common(server.get()))
    return std::unexpected(tls_error("cannot prepare TLS"));
  SSL_CTX_set_verify(client.get(), SSL_VERIFY_PEER, nullptr);
  ISOLA_CHECK(trust(client.get(), trusted_));
  trusted_ = std::string();
  SSL_CTX_set_num_tickets(server.get(), 0);
  SSL_CTX_set_alpn_select_cb(server.get(), choose_protocol, nullptr);
  SSL_CTX_set_tlsext_servername_callback(server.get(), check_name);
  client_ = std::move(client), server_ = std::move(server);
  return {};
}

Result<SslPointer> TlsSetup::to_server(const std::string& name, const std::vector<std::string>& protocols) {
  ISOLA_CHECK(prepare());
  SslPointer ssl(SSL_new(client_.get()));
  if (!ssl) return std::unexpected(tls_error("cannot begin TLS"));
  SSL_set_connect_state(ssl.get());
  // Names stand in the alternative names: a common name is whatever its authority did not have to check.
  SSL_set_hostflags(ssl.get(), X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  std::string wire;
  for (const auto& one : protocols) wire += static_cast<char>(one.size()), wire += one;
  if (SSL_set1_host(ssl.get(), name.c_str()) != 1 || SSL_set_tlsext_host_name(ssl.get(), name.c_str()) != 1 ||
      (!wire.empty() && SSL_set_alpn_protos(ssl.get(), reinterpret_cast<const unsigned char*>(wire.data()),
                                            static_cast<unsigned>(wire.size())) != 0))
    return std::unexpected(tls_error("cannot begin TLS"));
  return ssl;
}

Result<SslPointer> TlsSetup::to_client(const Leaf& leaf, const std::string& name, const std::string& protocol) {
  ISOLA_CHECK(prepare());
  SslPointer ssl(SSL_new(server_.get()));
  if (!ssl || SSL_use_certificate(ssl.get(), leaf.certificate.get()) != 1 ||
      SSL_use_PrivateKey(ssl.get(), leaf.key.get()) != 1)
    return std::unexpected(tls_error("cannot begin TLS"));
  auto expected = std::make_unique<Expected>(Expected{name, protocol});
  if (SSL_set_ex_data(ssl.get(), expected_index(), expected.get()) != 1)
    return std::unexpected(tls_error("cannot begin TLS"));
  (void)expected.release();
  SSL_set_accept_state(ssl.get());
  return ssl;
}

TlsLeg::TlsLeg(SslPointer ssl, Wire& wire, Meter& meter, std::string first)
    : raw_(wire, meter, std::move(first)), ssl_(std::move(ssl)) {
  BIO* bio = BIO_new(wire_method());
  if (!bio) return;  // then every call fails
  BIO_set_data(bio, &raw_);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
}

Moved TlsLeg::result(int returned, size_t bytes) {
  if (returned > 0) return {Io::moved, bytes};
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE: return {Io::blocked};
    case SSL_ERROR_ZERO_RETURN: return {Io::ended};
    default: break;
  }
  // Without an end of TLS's own, a cut connection would look like the end of an answer.
  long verified = SSL_get_verify_result(ssl_.get());
  why_ = last_error();
  if (verified != X509_V_OK) why_ = X509_verify_cert_error_string(verified);
  if (why_.empty()) why_ = "the connection broke";
  return {Io::failed};
}

Io TlsLeg::handshake() {
  ERR_clear_error();
  return result(SSL_do_handshake(ssl_.get()), 0).how;
}

std::string TlsLeg::protocol() const {
  const unsigned char* text = nullptr;
  unsigned size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &text, &size);
  return text ? std::string(reinterpret_cast<const char*>(text), size) : std::string();
}

Moved TlsLeg::read(char* to, size_t size) {
  ERR_clear_error();
  size_t bytes = 0;
  int returned = SSL_read_ex(ssl_.get(), to, size, &bytes);
  return result(returned, bytes);
}

Moved TlsLeg::write(const char* from, size_t size) {
  ERR_clear_error();
  size_t bytes = 0;
  int returned = SSL_write_ex(ssl_.get(), from, size, &bytes);
  return result(returned, bytes);
}

void TlsLeg::finish() {
  ERR_clear_error();
  (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

}  // namespace isola::gate
