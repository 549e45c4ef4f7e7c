// isola certs: TLS for a domain of this machine's own.
#include "cli/certs.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/certificates.h"
#include "cli/table.h"

namespace isola::cli {

namespace {

struct CertsOptions {
  std::string domain = "isola.test", folder, user = "isola";
};

Result<void> make(const CertsOptions& options) {
  const std::string& at = options.folder;
  ISOLA_CHECK(make_dirs(at, 0755));
  Certificate authority;
  auto certificate = read_file(at + "/ca.pem"), key = read_file(at + "/ca-key.pem");
  if (certificate && key) {
    // Clients trust it already: only the leaf is made anew.
    authority = {*certificate, *key};
  } else {
    ISOLA_TRY(authority, make_authority(options.domain));
    ISOLA_CHECK(replace_file(at + "/ca-key.pem", authority.key, 0600));
    ISOLA_CHECK(replace_file(at + "/ca.pem", authority.certificate, 0644));
  }
  ISOLA_TRY(Certificate leaf, make_wildcard(authority, options.domain));
  std::string path = at + "/server-key.pem";
  ISOLA_CHECK(replace_file(path, leaf.key, 0600));
  ISOLA_CHECK(replace_file(at + "/server.pem", leaf.certificate + authority.certificate, 0644));
  // The server reads it when it is root no more.
  if (const passwd* user = ::getpwnam(options.user.c_str()); user && ::geteuid() == 0)
    if (::lchown(path.c_str(), user->pw_uid, user->pw_gid) < 0)
      return sys_error("cannot give " + path + " to the server");
  return {};
}

}  // namespace

void add_certs(CLI::App& app, Common& common, int& code) {
  auto options = std::make_shared<CertsOptions>();
  auto* command = app.add_subcommand("certs", "Make a local certificate authority and a wildcard certificate by it");
  command->add_option("--domain", options->domain, "The domain; the certificate is for it and everything below it")
      ->capture_default_str();
  command->add_option("--out", options->folder, "Where to put the files (default: DATA/certs)");
  command->add_option("--user", options->user, "Who may read the server's key")->capture_default_str();
  command->callback([&common, &code, options] {
    if (options->folder.empty()) options->folder = common.data_dir + "/certs";
    if (auto made = make(*options); !made) {
      code = complain(made.error().message);
      return;
    }
    const auto& at = options->folder;
    if (common.json)
      return print_json({{"certificate", at + "/server.pem"},
                         {"key", at + "/server-key.pem"},
                         {"authority", at + "/ca.pem"},
                         {"domain", options->domain}});
    fmt::print(
        "certificate  {0}/server.pem\nkey          {0}/server-key.pem\nauthority    {0}/ca.pem\n\n"
        "isola serve --listen 127.0.0.1:8443 --domain {1} --tls-certificate {0}/server.pem --tls-key "
        "{0}/server-key.pem\n\n"
        "Clients have to trust the authority: NODE_EXTRA_CA_CERTS={0}/ca.pem for Node, SSL_CERT_FILE={0}/ca.pem for "
        "Python.\n"
        "api.{1} and *.{1} have to lead to this machine (a wildcard in DNS).\n",
        at, options->domain);
  });
}

}  // namespace isola::cli
