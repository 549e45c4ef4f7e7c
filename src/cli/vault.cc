// isola vault: the vault's key, for whoever is root here. And `isola vault-fetch`, which the launcher starts.
#include <fcntl.h>
#include <sys/prctl.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "cli/audit.h"
#include "cli/register.h"
#include "cli/source_place.h"
#include "cli/table.h"
#include "gate/address.h"
#include "http/client.h"
#include "launcher/client.h"
#include "store/sqlite_store.h"
#include "vault/aws_request.h"
#include "vault/minting.h"
#include "vault/seal.h"
#include "vault/source.h"

namespace isola::cli {

using nlohmann::json;

namespace {

// ---- a passphrase ---------------------------------------------------------------------------------------------------

// One line of the standard input; from a terminal without being seen.
Result<vault::Secret> read_passphrase(const char* prompt) {
  termios before{};
  const bool terminal = ::isatty(0) && ::tcgetattr(0, &before) == 0;
  if (terminal) {
    std::fputs(prompt, stderr);
    termios quiet = before;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ::tcsetattr(0, TCSAFLUSH, &quiet);
  }
  vault::Secret buffer = vault::Secret::of_size(4096);
  size_t size = 0;
  for (char c; size < buffer.size() && ::read(0, &c, 1) == 1 && c != '\n';) buffer.data()[size++] = c;
  if (terminal) {
    ::tcsetattr(0, TCSAFLUSH, &before);
    std::fputs("\n", stderr);
  }
  if (size == 0) return fail(Code::invalid, "there is no passphrase on the standard input");
  return vault::Secret(buffer.view().substr(0, size));
}

Result<void> vault_status(const Common& common) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  ISOLA_TRY(auto state, launcher.vault_state());
  if (common.json) {
    print_json({{"locked", state.locked},
                {"has_passphrase", state.has_passphrase},
                {"rotating", state.rotating},
                {"public_key", vault::to_base64(state.open_key)},
                {"trouble", state.trouble}});
    return {};
  }
  if (!state.trouble.empty()) return fail(Code::unavailable, "there is no vault: " + state.trouble);
  print(std::string("the vault is ") + (state.locked ? "locked" : "open") +
        (state.has_passphrase ? ", under a passphrase" : ", by its key file") +
        (state.rotating ? "; a rotation is unfinished (isola vault rotate)" : "") + "\n");
  return {};
}

Result<void> vault_unlock(const Common& common) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  ISOLA_TRY(auto passphrase, read_passphrase("passphrase of the vault: "));
  return launcher.unlock_vault(passphrase.view());
}

Result<void> vault_protect(const Common& common, bool remove) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  if (remove) return launcher.protect_vault("");
  ISOLA_TRY(auto passphrase, read_passphrase("new passphrase of the vault: "));
  if (::isatty(0)) {
    ISOLA_TRY(auto again, read_passphrase("once more: "));
    if (again.view() != passphrase.view()) return fail(Code::invalid, "those were two different ones");
  }
  return launcher.protect_vault(passphrase.view());
}

// A file of root's: the server, which asks for the values, must not be able to allow itself that.
Result<void> vault_expose(const Common& common, bool remove) {
  std::string path = common.data_dir + "/vault/allow-exposed";
  if (!remove) return replace_file(path, "", 0600);
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path);
  return {};
}

// ---- rotation -------------------------------------------------------------------------------------------------------

constexpr int kMostRounds = 100;  // over all secrets: another follows only where some were changed meanwhile

// Everything is sealed anew by a process of the launcher's; what passes here is cipher text. Whatever dies meanwhile:
// the old key is there until the end, and the next `rotate` goes on.
Result<void> vault_rotate(const Common& common) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  ISOLA_CHECK(launcher.rotate_vault(launcher::RotatePhase::begin));
  ISOLA_TRY(auto state, launcher.vault_state());
  vault::PublicKey key;
  if (state.open_key.size() != key.size()) return fail(Code::corrupt, "the launcher sent no key of a vault");
  std::copy(state.open_key.begin(), state.open_key.end(), key.begin());
  std::string path = common.data_dir + "/server/store.db";
  size_t done = 0;
  if (::access(path.c_str(), F_OK) == 0) {
    // The store's files were written by a process without privileges, and are read without any.
    ISOLA_CHECK(step_down(common.data_dir + "/server"));
    ISOLA_TRY(auto store, store::SqliteStore::open(path));
    bool left = true;
    for (int round = 0; left; ++round) {
      if (round == kMostRounds)
        return fail(Code::unavailable,
                    "secrets are changed faster than they are sealed anew; `isola vault rotate` "
                    "goes on where it was");
      left = false;
      ISOLA_TRY(auto secrets, store->all_secrets());
      for (const auto& secret : secrets) {
        if (vault::is_sealed_to(key, secret.sealed)) continue;
        left = true;
        ISOLA_TRY(auto fresh, launcher.reseal({secret.sealed}));
        auto kept = store->reseal_secret(secret.project, secret.name, secret.sealed, fresh[0]);
        if (!kept && kept.error().code != Code::not_found) return kept;  // not_found: changed meanwhile, look again
        if (kept) ++done;
      }
    }
  }
  ISOLA_CHECK(step_up());
  ISOLA_CHECK(launcher.rotate_vault(launcher::RotatePhase::end));
  if (common.json)
    print_json({{"resealed", done}});
  else
    print("the vault has a new key; " + std::to_string(done) + " secrets were sealed anew\n");
  return {};
}

// The key of tokens, not of secrets.
Result<void> rotate_tokens(const Common& common, bool at_once) {
  ISOLA_TRY(auto launcher, launcher::Client::connect(common.data_dir));
  auto wish = at_once ? launcher::SigningWish::replace : launcher::SigningWish::rotate;
  ISOLA_TRY(std::string keys, launcher.signing_keys(wish));
  json set = json::parse(keys, nullptr, false);
  if (common.json) {
    print_json(set);
    return {};
  }
  for (const auto& key : set["keys"]) print(text_of(key, "kid") + "\n");
  return {};
}

// ---- sources --------------------------------------------------------------------------------------------------------

constexpr size_t kMostSource = 64 << 10, kMostAnswer = 256 << 10;

// Hurried, and to where this source may lead: what is judged is the address that is dialled.
http::ClientOptions options_for(const vault::Source& source, const std::string& authorities) {
  http::ClientOptions options{.connect_time = std::chrono::milliseconds(3000),
                              .io_time = std::chrono::milliseconds(3000),
                              .more_authorities = authorities};
  options.may_dial = [&source](const sockaddr* to) {
    auto address = gate::Address::of(to);
    return address && may_lead_to(source, gate::place_of(*address).place);
  };
  return options;
}

Result<void> answer_with(const Result<http::ClientReply>& reply) {
  if (!reply) return std::unexpected(reply.error());
  // Not the body: it may hold what nobody should read in a log.
  if (!reply->ok()) return fail(Code::unavailable, "it answered with status " + std::to_string(reply->status));
  if (reply->body.size() > kMostAnswer) return fail(Code::invalid, "its answer is too large");
  return write_all(1, reply->body);
}

Result<void> fetch_kv(const vault::Source& source, const std::string& authorities) {
  ISOLA_TRY(auto url, http::parse_url(source.url));
  http::ClientRequest request;
  std::string path = source.path;
  if (source.kv_version == 2) path.insert(path.find('/'), "/data");
  request.target = (url.target == "/" ? "" : url.target) + "/v1/" + path;
  request.headers = {{"X-Vault-Token", source.token}};
  if (!source.name_space.empty()) request.headers.emplace_back("X-Vault-Namespace", source.name_space);
  http::Client client(url, options_for(source, authorities));
  return answer_with(client.send(request));
}

Result<void> fetch_aws(const vault::Source& source, const std::string& authorities) {
  ISOLA_TRY(auto url, http::parse_url(source.url.empty() ? "https://secretsmanager." + source.region + ".amazonaws.com"
                                                         : source.url));
  char time[32];
  const time_t now = ::time(nullptr);
  tm parts{};
  std::strftime(time, sizeof time, "%Y%m%dT%H%M%SZ", ::gmtime_r(&now, &parts));
  auto signed_one = vault::get_secret_value(source, url.authority(), time);
  http::ClientRequest request;
  request.method = "POST";
  request.target = "/";
  request.headers = signed_one.headers;
  request.body = signed_one.body;
  request.type = "application/x-amz-json-1.1";
  http::Client client(url, options_for(source, authorities));
  return answer_with(client.send(request));
}

// An app's own token for one of its installation.
Result<void> fetch_github(const vault::Source& source, const std::string& authorities) {
  ISOLA_TRY(auto url, http::parse_url(source.url.empty() ? "https://api.github.com" : source.url));
  ISOLA_TRY(auto exchange, vault::github_exchange(source, int64_t{::time(nullptr)} * 1000));
  http::ClientRequest request;
  request.method = "POST";
  request.target = (url.target == "/" ? "" : url.target) + exchange.target;
  request.headers = exchange.headers;
  request.body = exchange.body;
  http::Client client(url, options_for(source, authorities));
  return answer_with(client.send(request));
}

Result<void> fetch_file(const vault::Source& source) {
  auto bytes = read_file(source.path, kMostAnswer);
  if (!bytes) return std::unexpected(bytes.error());
  auto written = write_all(1, *bytes);
  vault::wipe(*bytes);
  return written;
}

// The program becomes us: its output is the answer.
Result<void> fetch_command(const vault::Source& source) {
  std::vector<char*> arguments;
  std::vector<std::string> words = source.argv;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null || ::dup2(null.get(), 0) < 0) return sys_error("cannot open /dev/null");
  ::execv(arguments[0], arguments.data());
  return sys_error("cannot start " + words[0]);
}

Result<void> vault_fetch(const std::string& authorities) {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect this process");
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(0, buffer, sizeof buffer)) > 0 && text.size() < kMostSource;)
    text.append(buffer, static_cast<size_t>(n));
  ISOLA_TRY(auto source, vault::parse_kept(text));
  vault::wipe(text);
  switch (source.type) {
    case vault::Source::Type::file: return fetch_file(source);
    case vault::Source::Type::command: return fetch_command(source);
    case vault::Source::Type::vault_kv: return fetch_kv(source, authorities);
    case vault::Source::Type::aws: return fetch_aws(source, authorities);
    case vault::Source::Type::github_app: return fetch_github(source, authorities);
    case vault::Source::Type::env:
    case vault::Source::Type::jwt: break;
  }
  return fail(Code::unsupported, "that is the launcher's to read or make");
}

}  // namespace

void add_vault(CLI::App& app, Common& common, int& code) {
  auto* group = app.add_subcommand("vault", "The key that secrets are sealed to")->require_subcommand(1);
  auto done = [&code](const Result<void>& result) { code = result ? 0 : complain(result.error().message); };
  group->add_subcommand("status", "Whether it is open")->callback([&common, done] { done(vault_status(common)); });
  group->add_subcommand("unlock", "Open it with its passphrase, from the terminal or the standard input")
      ->callback([&common, done] { done(vault_unlock(common)); });
  auto remove = std::make_shared<bool>(false);
  auto* protecting = group->add_subcommand(
      "protect",
      "Put its key under a passphrase, from the terminal or the standard input: then somebody has to unlock it "
      "after each start of the launcher");
  protecting->add_flag("--remove", *remove, "Take the passphrase away: the key file alone opens it");
  protecting->callback([&common, done, remove] { done(vault_protect(common, *remove)); });
  auto never = std::make_shared<bool>(false);
  auto* exposing = group->add_subcommand(
      "expose", "Allow that values are given into sandboxes, for commands of projects that have allow_exposed");
  exposing->add_flag("--never", *never, "As before: no value is");
  exposing->callback([&common, done, never] { done(vault_expose(common, *never)); });
  group->add_subcommand("rotate", "A new key: every secret is sealed anew; one that was interrupted goes on")
      ->callback([&common, done] { done(vault_rotate(common)); });
  auto at_once = std::make_shared<bool>(false);
  auto* signing = group->add_subcommand(
      "rotate-tokens", "A new key that tokens of sandboxes are signed with: published now, and used when it is known");
  signing->add_flag("--now", *at_once, "Used at once, and the others are forgotten: for a key that was stolen");
  signing->callback([&common, done, at_once] { done(rotate_tokens(common, *at_once)); });
}

// Started by the launcher, and of no use to anybody else.
void add_vault_fetch(CLI::App& app, int& code) {
  auto authorities = std::make_shared<std::string>();
  auto* fetching = app.add_subcommand("vault-fetch", "Fetches a value from where it is kept")->group("");
  fetching->add_option("--authorities", *authorities, "PEM file: certificates to believe beside the machine's");
  fetching->callback([&code, authorities] {
    auto fetched = vault_fetch(*authorities);
    code = fetched ? 0 : 1;
    if (!fetched) std::fprintf(stderr, "%s\n", fetched.error().message.c_str());
  });
}

}  // namespace isola::cli
