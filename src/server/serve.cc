#include "server/serve.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "base/file.h"
#include "base/log_lines.h"
#include "builder/builder.h"
#include "dialect/e2b/api.h"
#include "dialect/native/api.h"
#include "http/server.h"
#include "http/workers.h"
#include "image/oci_reference.h"
#include "interpreter/warm.h"
#include "launcher/client.h"
#include "sandbox/service.h"
#include "server/identity.h"
#include "server/keeper.h"
#include "server/prover.h"
#include "server/puller.h"
#include "server/syslog.h"
#include "server/tidy.h"
#include "store/key_ring.h"
#include "store/sqlite_store.h"
#include "webhook/courier.h"

namespace isola::server {

namespace net = boost::asio;

namespace {

sandbox::Settings settings_of(const Config& config) {
  return {.default_template = config.default_template,
          .default_limits = config.limits,
          .default_timeout = config.timeout.count(),
          .pool = config.pool,
          .pool_most = config.pool_most,
          .pool_memory = config.pool_memory,
          .sample = config.sample,
          .patience = config.patience,
          .sweep = config.sweep,
          .scrub = config.scrub,
          .scan_patience = config.scan_patience,
          .allow_unquotaed_disk = config.allow_unquotaed_disk,
          .issuer = config.issuer,
          .prices = config.prices};
}

log::Level level_of(const std::string& word) {
  if (word == "debug") return log::Level::debug;
  if (word == "warn") return log::Level::warn;
  if (word == "error") return log::Level::error;
  return log::Level::info;
}

void raise_file_limit() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

// A socket to the launcher, with the keeper's help where there is none.
Result<Fd> connect_launcher(const std::string& data, Keeper* keeper) {
  auto socket = launcher::connect_socket(data);
  if (socket || !keeper) return socket;
  // denied: it was started for somebody else, and the keeper can put that right.
  if (socket.error().code != Code::unavailable && socket.error().code != Code::denied) return socket;
  ISOLA_CHECK(keeper->start_launcher());
  return launcher::connect_socket(data);
}

void log_access(std::span<const http::AccessEntry> entries) {
  log::Lines lines;
  for (const auto& entry : entries) {
    auto status = fmt::to_string(entry.status), in = fmt::to_string(entry.bytes_in),
         out = fmt::to_string(entry.bytes_out);
    auto ms = fmt::format("{:.1f}", std::chrono::duration<double, std::milli>(entry.duration).count());
    auto ended = std::chrono::duration_cast<std::chrono::milliseconds>(entry.ended.time_since_epoch()).count();
    lines.add(ended, log::Level::info, "http", fmt::format("{} {}", entry.method, log::quoted(entry.path)),
              {{"status", status, true},
               {"ms", ms, true},
               {"in", in, true},
               {"out", out, true},
               {"host", entry.host},
               {"peer", entry.peer},
               {"request_id", entry.request_id}});
  }
}

enum class Word { stop, reload, nothing };

// Waits for a signal, or until it is time to tidy up.
Word next_word(int fd, std::chrono::milliseconds patience) {
  for (;;) {
    pollfd ready{fd, POLLIN, 0};
    int n = ::poll(&ready, 1, static_cast<int>(patience.count()));
    if (n == 0) return Word::nothing;
    signalfd_siginfo info{};
    if (n < 0) continue;
    if (::read(fd, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    return info.ssi_signo == SIGHUP ? Word::reload : Word::stop;
  }
}

Result<Fd> watch_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC));
  if (!fd) return sys_error("cannot watch for signals");
  return fd;
}

constexpr auto kTidyEvery = std::chrono::minutes(1);

// What nobody waits for: when keys were last used, and records that are old enough to be forgotten.
void tidy_up(store::Store& store, store::KeyRing& keys, uint64_t keep_ended_days) {
  if (auto saved = keys.save_uses(); !saved)
    log::warn("server", "cannot note the use of keys: {}", saved.error().message);
  if (auto forgotten = forget_ended(store, keep_ended_days, sandbox::now_millis()); !forgotten)
    log::warn("server", "cannot forget old records: {}", forgotten.error().message);
}

void record_server(ledger::Ledger& ledger, ledger::Kind kind) {
  ledger::Event event;
  event.project = "default";
  event.kind = kind;
  event.data = fmt::format("{{\"version\":\"{}\",\"pid\":{}}}", ISOLA_VERSION, ::getpid());
  (void)ledger.append(std::move(event));
}

void record_key(ledger::Ledger& ledger, const store::KeyRecord& key, uint64_t uses_before) {
  ledger::Event event;
  event.project = key.project;
  event.actor = event.key = key.id;
  event.kind = ledger::Kind::key_used;
  event.data = fmt::format(R"({{"scope":"{}","uses_before":{}}})", to_string(key.scope), uses_before);
  (void)ledger.append(std::move(event));
}

void record_proof(ledger::Ledger& ledger, const Verdict& verdict) {
  ledger::Event event;
  event.project = "default";
  event.kind = verdict.passed ? ledger::Kind::prove_passed : ledger::Kind::prove_failed;
  event.data = nlohmann::json{{"why", verdict.why}, {"counts", verdict.counts}}.dump();
  (void)ledger.append(std::move(event));
}

std::string url_of(const Config& config, const http::Server& server) {
  return fmt::format("{}://{}", config.tls_certificate.empty() ? "http" : "https", server.addresses().front());
}

Result<void> run(const ServeOptions& options, const std::function<void(const std::string&)>& say) {
  const Config& config = options.config;
  log::set_level(level_of(config.log_level));
  log::set_format(config.log_format == "json" ? log::Format::json : log::Format::text);
  raise_file_limit();
  ISOLA_CHECK(http::may_listen(config.listen));  // before a launcher is started for nothing
  ISOLA_TRY(Identity identity, prepare_identity(config));
  ISOLA_TRY(Fd signals, watch_signals());
  ISOLA_TRY(Keeper keeper, Keeper::start({.data_dir = config.data, .cache_dir = config.cache, .user = config.user},
                                         identity.uid, config.registries));
  ISOLA_CHECK(keeper.start_launcher());
  forget_operators_secrets();
  // Read while that is allowed: root's own pip.conf and .npmrc are not everybody's.
  auto registries = gate::read_registries({.environment = gate::own_environment()});
  ISOLA_CHECK(drop_privileges(identity));

  ISOLA_TRY(auto store, store::SqliteStore::open(identity.folder + "/store.db"));
  std::unique_ptr<SyslogExporter> syslog;
  if (!config.syslog.empty()) {
    ISOLA_TRY(auto target, parse_syslog(config.syslog));
    syslog = std::make_unique<SyslogExporter>(std::move(target), identity.folder + "/syslog.position");
  }
  auto tell = [exporter = syslog.get()](uint64_t newest) {
    if (exporter) exporter->written(newest);
  };
  ISOLA_TRY(auto ledger,
            ledger::Ledger::open(identity.folder + "/ledger.db", {.awaited_on_disk = true,
                                                                  .checkpoint_entries = config.checkpoint_entries,
                                                                  .checkpoint_every = config.checkpoint_every,
                                                                  .written = tell}));
  // Whatever ends this function: it reads the ledger, and must end before it does.
  std::unique_ptr<SyslogExporter, void (*)(SyslogExporter*)> reading(syslog.get(),
                                                                     [](SyslogExporter* it) { it->stop(); });
  if (syslog)
    syslog->start([&](uint64_t after, size_t most) { return ledger->query({.after = after, .limit = most}); },
                  ledger->head().seq);
  ISOLA_TRY(bool first, provide_first_key(*store, identity.first_key));
  ISOLA_TRY(std::string secret, url_secret(identity));
  const uint64_t ledger_before = ledger->head().seq;
  record_server(*ledger, ledger::Kind::server_started);

  http::Workers workers(config.workers);
  workers.start();
  auto launcher = sandbox::LauncherLink::make(
      workers.next(), [&](bool start) { return connect_launcher(config.data, start ? &keeper : nullptr); });
  auto service = std::make_shared<sandbox::Service>(
      sandbox::Service::Parts{.next_worker = [&]() -> net::io_context& { return workers.next(); },
                              .launcher = launcher,
                              .store = *store,
                              .ledger = *ledger,
                              .cache_dir = config.cache,
                              .registries = registries,
                              .settings = settings_of(config),
                              .secret = secret,
                              .warming = {.has = interpreter::has_interpreter, .bring_up = interpreter::warm},
                              .ledger_before = ledger_before});
  auto puller = std::make_shared<Puller>(
      [&](const std::string& image, const std::string& credentials) { return keeper.pull(image, credentials); });
  auto builder = std::make_shared<builder::Builder>(builder::Builder::Parts{
      .next_worker = [&]() -> net::io_context& { return workers.next(); },
      .service = service,
      .folder = identity.folder + "/contexts",
      .pull = [puller](std::string image, std::string own) { return puller->pull(std::move(image), std::move(own)); },
      .may_pull = [&](const std::string& project, const std::string& image) -> Result<void> {
        ISOLA_CHECK(check_registry(config.registries, image));
        ISOLA_TRY(auto reference, image::parse_reference(image));
        return service->may_reach(project, reference.registry, 443);
      },
      .longest = config.build_timeout,
      .longest_ready = config.build_ready_timeout});
  ISOLA_CHECK(builder->start());
  auto courier = std::make_shared<webhook::Courier>(
      webhook::Courier::Parts{.next_worker = [&]() -> net::io_context& { return workers.next(); },
                              .service = service,
                              .store = *store,
                              .again = config.webhook_again});
  auto keys = std::make_shared<store::KeyRing>(*store);
  keys->on_hour([&ledger](const store::KeyRecord& key, uint64_t before) { record_key(*ledger, key, before); });

  auto port = std::make_shared<std::atomic<uint16_t>>(0);
  std::atomic<http::Server*> listening = nullptr;
  // Also what another process revoked: it shows when the keys are read anew.
  auto end_streams = [&listening](std::set<std::string, std::less<>> revoked, uint64_t except) {
    if (http::Server* all = listening)
      all->cut_if([revoked, except](const http::Exchange& ex) {
        return revoked.contains(ex.noted("key")) && ex.number() != except;
      });
  };
  native::Options native_options{
      .hosts = config.hosts,
      .domain = domain_of_ports(config),
      .url_secret = secret,
      .scheme = config.tls_certificate.empty() ? "http" : "https",
      .port = port,
      .end_streams = [end_streams](const std::string& key, uint64_t except) { end_streams({key}, except); }};
  native::Api native(service, builder, keys, native_options);
  std::map<std::string, std::string> images;
  for (const auto& pair : config.e2b_images) images[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
  e2b::Options e2b_options{.hosts = config.hosts,
                           .domain = config.domain,
                           .port = port,
                           .secret = secret,
                           .context_token = config.e2b_context_token,
                           .images = images};
  e2b::Api e2b(service, builder, courier, keys, e2b_options);
  http::Router router;
  native.add_to(router);
  e2b.add_to(router);
  http::ServerOptions server_options{.listen = config.listen};
  server_options.limits.connections = config.connections;
  if (!config.tls_certificate.empty()) server_options.tls = http::TlsFiles{config.tls_certificate, config.tls_key};
  if (config.access_log) server_options.access_log = log_access;
  http::Server server(workers, server_options, std::move(router));
  ISOLA_CHECK(server.start());
  *port = server.port();
  listening = &server;

  auto starting = net::co_spawn(workers.next(), service->start(), net::use_future);
  while (starting.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (next_word(signals.get(), std::chrono::milliseconds(10)) != Word::stop) continue;
    log::info("server", "stopping before it was ready");
    ::_exit(0);  // sandboxes live on; whoever starts next takes them in
  }
  auto started = starting.get();
  if (!started) {
    say(started.error().message + "\n");
    log::error("server", "{}", started.error().message);
    ::_exit(1);  // as below: nothing can be destroyed in order here
  }
  if (auto told = courier->start(); !told) log::error("webhook", "nobody is told anything: {}", told.error().message);
  std::string url = url_of(config, server);
  auto info = net::co_spawn(workers.next(), service->info(), net::use_future).get();
  log::info("server", "ready on {} (boundaries: {}); {} sandboxes live", url,
            info ? boundary::names_of(info->boundaries) : "not known", service->living());
  if (first) {
    log::info("server", "the first API key is in {}/key", config.data);
    // Once, for whoever started it by hand: where standard output is a file, that is a log.
    if (::isatty(STDOUT_FILENO)) {
      std::printf("the first API key, kept in %s/key: %s\n", config.data.c_str(), identity.first_key.c_str());
      std::fflush(stdout);
    }
  }
  if (options.on_ready) options.on_ready(url);
  say("ready " + url + "\n");

  ProofDoor door(config.prove_closes, [&](std::string why) { service->close_door(std::move(why)); });
  Prover prover(
      {.at_start = config.prove_at_start, .every = config.prove_every}, [&] { return keeper.prove(); },
      [&](const Verdict& verdict) {
        record_proof(*ledger, verdict);
        door.heard(verdict);
      });
  prover.tick();
  uint64_t keep_ended_days = config.keep_ended_days;
  for (Word word; (word = next_word(signals.get(), kTidyEvery)) != Word::stop;) {
    tidy_up(*store, *keys, keep_ended_days);
    builder->sweep();
    prover.tick();
    if (word == Word::nothing) continue;
    auto fresh = options.reload ? options.reload() : Result<Config>(config);
    // Keys that were revoked and limits that were lowered do not wait for whoever mends the file.
    if (!fresh) log::error("server", "the configuration was not reloaded: {}", fresh.error().message);
    if (fresh) {
      log::set_level(level_of(fresh->log_level));
      log::set_format(fresh->log_format == "json" ? log::Format::json : log::Format::text);
      service->set_settings(settings_of(*fresh));
      keep_ended_days = fresh->keep_ended_days;
      door.set_closes(fresh->prove_closes);
      prover.set_options({.at_start = false, .every = fresh->prove_every});
    }
    keys->reload();
    if (auto known = service->reload_projects(); !known)
      log::error("server", "the projects were not reloaded: {}", known.error().message);
    if (auto known = store->list_keys("")) {
      std::set<std::string, std::less<>> revoked;
      for (const auto& key : *known)
        if (key.revoked) revoked.insert(key.id);
      end_streams(std::move(revoked), 0);
    }
    if (auto tls = server.reload_tls(); !tls && tls.error().code != Code::unsupported)
      log::error("server", "TLS was not reloaded: {}", tls.error().message);
    log::info("server", "reloaded keys, limits and certificates");
  }
  log::info("server", "stopping; sandboxes live on");
  server.stop(config.grace);
  courier->stop();
  service->stop();
  (void)keys->save_uses();
  record_server(*ledger, ledger::Kind::server_stopped);
  launcher->stop();
  workers.stop();
  if (auto flushed = ledger->flush(); !flushed) return flushed;
  // Whatever still waits on the workers holds links to one another across them: no order of destruction is right, and
  // the process is over. Store and ledger are on disk.
  ::_exit(0);
}

}  // namespace

Result<void> serve(const ServeOptions& options) {
  Fd ready(options.ready_fd);
  auto say = [&](const std::string& word) {
    if (ready) (void)write_all(ready.get(), word);
    ready.reset();
  };
  auto result = run(options, say);
  if (!result) say(result.error().message + "\n");
  return result;
}

}  // namespace isola::server
