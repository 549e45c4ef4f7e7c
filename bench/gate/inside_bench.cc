// Requests through connections that are looked into, beside nginx as a reverse proxy that ends TLS on both sides and
// sets the same header: h2load as the client, nginx as the server, for all of them.
#include "bench/gate/inside_bench.h"

#include <fmt/format.h>

#include <fstream>
#include <functional>

#include "base/file.h"
#include "gate/tls_world.h"
#include "vault/binding_wire.h"

namespace isola::bench {

namespace {

using namespace std::string_literals;
namespace world = gate::testing;

constexpr uint16_t kServer = 9443, kProxy = 19443;
constexpr int kClients = 16, kStreams = 8;  // connections, and requests at once in each of HTTP/2
constexpr char kSecret[] = "a-credential-of-some-length-0123456789";

std::string pem_of(const std::function<void(BIO*)>& write) {
  BIO* bio = BIO_new(BIO_s_mem());
  write(bio);
  char* data = nullptr;
  long size = BIO_get_mem_data(bio, &data);
  std::string out(data, static_cast<size_t>(size));
  BIO_free(bio);
  return out;
}

// One nginx with this configuration, in a namespace; gone with its object.
class TlsNginx {
 public:
  TlsNginx(const Fd& netns, const std::string& http) {
    if (!::mkdtemp(folder_)) return;
    config_ = folder_ + "/nginx.conf"s;
    (void)replace_file(config_, fmt::format("daemon off; worker_processes 1; error_log stderr crit; pid {}/pid;\n"
                                            "events {{ worker_connections 1024; }}\nhttp {{ access_log off;\n"
                                            "client_body_temp_path {}/a; proxy_temp_path {}/b; fastcgi_temp_path {}/c;"
                                            " uwsgi_temp_path {}/d; scgi_temp_path {}/e; keepalive_requests 10000000;\n"
                                            "{}\n}}\n",
                                            folder_, folder_, folder_, folder_, folder_, folder_, http));
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (::setns(netns.get(), CLONE_NEWNET) == 0)
      ::execlp("nginx", "nginx", "-e", "stderr", "-c", config_.c_str(), nullptr);
    ::_exit(127);
  }
  ~TlsNginx() {
    if (pid_ > 0) ::kill(pid_, SIGTERM), ::waitpid(pid_, nullptr, 0);
    (void)!std::system(("rm -rf "s + folder_).c_str());
  }

 private:
  char folder_[32] = "/tmp/isola-gate-bench-XXXXXX";
  std::string config_;
  pid_t pid_ = -1;
};

// Requests a second, from what h2load prints: "finished in 1.07s, 9345.79 req/s, …". 0: some failed.
double rate_in(const std::string& text) {
  if (text.find(" 0 failed, 0 errored") == std::string::npos) return 0;
  size_t at = text.find("finished in ");
  return at == std::string::npos ? 0 : std::atof(text.c_str() + text.find(", ", at) + 2);
}

// Of what it prints, the lines that say how many failed and with which status.
std::string failures_in(const std::string& text) {
  std::string out;
  for (const char* line : {"requests: ", "status codes: "})
    if (size_t at = text.find(line); at != std::string::npos) out += text.substr(at, text.find('\n', at) - at) + "; ";
  return out.empty() ? text.substr(0, 400) : out.substr(0, out.size() - 2);
}

// And what it wrote of each request: when it began, its status, its microseconds. h2load adds to the file.
void take_times(const std::string& path, Samples& into) {
  std::ifstream in(path);
  for (std::string begun, status, micros; in >> begun >> status >> micros;) into.add(std::atof(micros.c_str()));
  in.close();
  std::ofstream(path, std::ios::trunc).close();
}

}  // namespace

Result<void> bench_inside(int rounds, int requests, Report& report) {
  if (std::system("h2load --version >/dev/null 2>&1 && nginx -v >/dev/null 2>&1") != 0)
    return fail(Code::unavailable, "h2load or nginx is missing");
  world::World all;
  all.outside->set("a.example", {"203.0.113.10"});
  auto upstream = gate::Authority::make(std::string(32, 'u'), "upstream").value();
  world::Scrap trusted(upstream.pem());
  all.stop_gate();
  all.start_gate({.authorities = trusted.path()});
  auto key = vault::KeyPair::make().value();
  if (!all.give_key(key.secret_key().view()).empty()) return fail(Code::internal, "the gate takes no key");
  auto leaf = upstream.leaf("a.example").value();
  world::Scrap key_file(
      pem_of([&](BIO* bio) { PEM_write_bio_PrivateKey(bio, leaf->key.get(), nullptr, nullptr, 0, nullptr, nullptr); }));
  world::Scrap certificate(pem_of([&](BIO* bio) { PEM_write_bio_X509(bio, leaf->certificate.get()); }));
  const auto pair = fmt::format("ssl_certificate {}; ssl_certificate_key {};", certificate.path(), key_file.path());
  TlsNginx server(
      all.outside_netns(),
      fmt::format("map $http_authorization $known {{ default 0; \"Bearer {}\" 1; }}\n"
                  "server {{ listen 203.0.113.10:{} ssl http2; {} location / {{ if ($known = 0) {{ return 401; }}"
                  " return 200 \"{}\"; }} }}",
                  kSecret, kServer, pair, std::string(1000, 'x')));
  TlsNginx proxy(
      all.gate_netns(),
      // As many kept connections as there are requests at once, and more: else it makes a new one for each that is
      // over, which is slow and leaves no port free after a while.
      fmt::format("upstream u {{ server 203.0.113.10:{}; keepalive {}; keepalive_requests 10000000; }}\n"
                  "server {{ listen 127.0.0.1:{} ssl http2; {} location / {{ proxy_pass https://u;\n"
                  "proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host a.example;\n"
                  "proxy_set_header Authorization \"Bearer {}\"; proxy_ssl_verify on; proxy_ssl_name a.example;\n"
                  "proxy_ssl_server_name on; proxy_ssl_trusted_certificate {}; }} }}",
                  kServer, 2 * kClients * kStreams, kProxy, pair, kSecret, trusted.path()));
  vault::Binding binding;
  binding.id = "b", binding.secret = "s", binding.names = {"a.example"}, binding.ports = std::to_string(kServer);
  binding.sealed = vault::seal(key.open_key(), kSecret).value();
  auto box = all.box("allow a.example", "", vault::encode_bindings({binding}));
  bool ready = false;
  for (int i = 0; i < 500 && !ready; ++i) {
    ready = all.run_plainly([] {
      return world::dial("127.0.0.1", kProxy) && world::dial("203.0.113.10", kServer) ? "y"s : "n"s;
    }) == "y";
    if (!ready) ::poll(nullptr, 0, 10);
  }
  if (!ready) return fail(Code::unavailable, "nginx did not start");

  for (bool http2 : {false, true}) {
    const char* names[3] = {"direct", "nginx, reverse proxy with TLS on both sides", "the gate, looked into"};
    const std::string what = http2 ? fmt::format("HTTP/2, {} connections of {} streams", kClients, kStreams)
                                   : fmt::format("HTTP/1.1, {} connections", kClients);
    Samples rates[3], times[3];
    world::Scrap log("");
    // It may be written to by whoever is root in a box, too.
    if (::chmod(log.path().c_str(), 0666) < 0) return sys_error("cannot share " + log.path());
    auto command = [&](const std::string& at, uint16_t port, bool with_key) {
      return fmt::format("h2load {} -n {} -c {} --log-file={} {} --connect-to={}:{} https://a.example:{}/",
                         http2 ? fmt::format("-m {}", kStreams) : "--h1", requests, kClients, log.path(),
                         with_key ? fmt::format("-H 'Authorization: Bearer {}'", kSecret) : "", at, port, kServer);
    };
    for (int round = 0; round < rounds; ++round) {
      const std::function<std::string()> ways[3] = {
          [&] { return all.run_plainly([&] { return world::shell(command("203.0.113.10", kServer, true)); }); },
          [&] { return all.run_plainly([&] { return world::shell(command("127.0.0.1", kProxy, false)); }); },
          [&] { return box.run([&] { return world::shell(command(world::resolve("a.example"), kServer, false)); }); }};
      for (int i = 0; i < 3; ++i) {
        const std::string text = ways[i]();
        const double rate = rate_in(text);
        if (rate == 0)
          return fail(Code::internal, fmt::format("requests failed ({}, {}): {}", names[i], what, failures_in(text)));
        rates[i].add(rate);
        take_times(log.path(), times[i]);
      }
      while (all.pending_events()) all.drop_event();
    }
    for (int i = 0; i < 3; ++i)
      report.value("Requests with a credential set: " + what, names[i], rates[i].p50(), "a second");
    for (int i = 0; i < 3; ++i) report.timing("Time of a request, all connections busy: " + what, names[i], times[i]);
    if (http2)
      report.note(
          "nginx speaks HTTP/1.1 to the server behind it, also where its client speaks HTTP/2: it has no other "
          "way; the gate speaks HTTP/2 on both sides");
    report.goal(
        fmt::format("nginx / gate, requests a second, {} (the gate ≥ 0.7× nginx)", http2 ? "HTTP/2" : "HTTP/1.1"),
        paired_ratio(rates[1], rates[2]), 1 / 0.7,
        fmt::format("the gate has {:.2f}×", paired_ratio(rates[2], rates[1])));
  }
  return {};
}

}  // namespace isola::bench
