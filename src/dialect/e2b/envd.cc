#include "dialect/e2b/envd.h"

#include <charconv>

#include "base/hash/sha256.h"
#include "dialect/e2b/launches.h"
#include "dialect/e2b/metrics.h"
#include "dialect/e2b/tokens.h"
#include "dialect/e2b/watchers.h"
#include "dialect/shared/input.h"
#include "dialect/shared/text.h"
#include "http/error_reply.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr const char* kSandbox = "e2b-sandbox";
// Of one message: what carries input for a process, and every other, which is names and settings.
constexpr size_t kMostInput = 16 << 20, kMostEnvdBody = 1 << 20, kFreeInput = 64 << 10;
constexpr store::Millis kWoken = 300'000;
constexpr auto kQuietInput = std::chrono::hours(1);  // whoever types may have to think

void unauthorized(http::Exchange& ex, const std::string& message) {
  ex.reply(401, dialect::dump({{"code", 401}, {"message", message}}));
}

constexpr size_t kSignatureSize = 3 + 43;  // "v1_" and a SHA-256 in base64 without its padding

enum class Shape { call, stream };

// Fails a call whose user or sandbox is not right, in the shape that its client can read; then there is none.
Task<std::optional<Call>> enter_rpc(sandbox::Service& service, http::Exchange& ex, Shape shape) {
  auto box = service.find_any(std::string(ex.noted(kSandbox)));
  if (!box) {
    gone(ex, std::string(ex.noted(kSandbox)));
    co_return std::nullopt;
  }
  std::string name = basic_user(ex.header("authorization")).value_or("");
  auto call = co_await enter(service, ex, *box, name);
  if (call) co_return std::move(*call);
  if (!is_running(*box) && !may_come_back(service, *box, call.error())) {
    gone(ex, (*box)->id());
    co_return std::nullopt;
  }
  RpcError error = rpc_error(call.error());
  if (call.error().code == Code::denied) error.code = "unauthenticated";
  if (shape == Shape::stream) {
    RpcStream out(ex);
    co_await out.end(error);
  } else {
    fail_rpc(ex, error);
  }
  co_return std::nullopt;
}

Task<Result<json>> read_call(http::Exchange& ex, size_t most) {
  ISOLA_CO_TRY(std::string text, co_await ex.read_all(most));
  co_return parse_object(text);
}

// One envelope, and nothing after it.
Task<Result<json>> read_message(http::Exchange& ex) {
  ISOLA_CO_TRY(std::string text, co_await ex.read_all(kMostEnvdBody));
  EnvelopeReader reader(kMostEnvdBody);
  ISOLA_CO_CHECK(reader.feed(text));
  auto message = reader.next();
  if (!message) co_return fail(Code::invalid, "the request holds no whole message");
  co_return parse_object(*message);
}

}  // namespace

void starting(http::Exchange& ex, const std::string& sandbox) {
  ex.set_header("Retry-After", "1");
  ex.reply(503, dialect::dump({{"sandboxId", sandbox}, {"message", "The server is starting"}, {"code", 503}}));
}

void gone(http::Exchange& ex, const std::string& sandbox) {
  ex.reply(502, dialect::dump({{"sandboxId", sandbox}, {"message", "The sandbox was not found"}, {"code", 502}}));
}

void not_woken(sandbox::Service& service, http::Exchange& ex, const sandbox::BoxPtr& box, const Error& error) {
  if (!may_come_back(service, box, error)) return gone(ex, box->id());
  const int status = http::status_of(error.code);
  ex.set_header("Retry-After", "1");
  ex.reply(status, dialect::dump({{"sandboxId", box->id()}, {"message", error.message}, {"code", status}}));
}

bool is_running(const sandbox::BoxPtr& box) {
  return box->state() == State::running || box->state() == State::creating;
}

Task<bool> left_under(sandbox::BoxPtr box) {
  // On its way into an image its link ends before it is known to be paused.
  if (box->is_shut()) {
    auto turn = co_await box->turn();
  }
  co_return !is_running(box);
}

void cut_off(http::Exchange& ex, const sandbox::BoxPtr& box) {
  if (ex.replied())
    ex.abort();
  else
    gone(ex, box->id());
}

bool may_wake(sandbox::Service& service, const sandbox::BoxPtr& box) {
  auto record = box->record();
  if (!record.lifetime.auto_resume) return false;
  if (record.state != State::archived) return record.state == State::paused;
  // How it was put to sleep is known by what was put away.
  auto image = service.store().find_image(record.image);
  return image && image->memory;
}

bool may_come_back(sandbox::Service& service, const sandbox::BoxPtr& box, const Error& error) {
  return may_wake(service, box) && (error.code == Code::exhausted || error.code == Code::unavailable);
}

Task<Result<void>> wake(sandbox::Service& service, sandbox::BoxPtr box) {
  if (!may_wake(service, box)) co_return Result<void>();
  auto record = box->record();
  sandbox::ResumeRequest request;
  if (record.lifetime.timeout > 0) request.timeout = std::max<store::Millis>(record.lifetime.timeout, kWoken);
  request.by = sandbox::Caller(sandbox::kOwnToken, record.actor);
  auto woken = co_await service.resume(box, std::move(request));
  if (!woken) co_return std::unexpected(std::move(woken).error());
  co_return Result<void>();
}

Envd::Envd(std::shared_ptr<sandbox::Service> service, std::shared_ptr<const Tokens> tokens,
           std::shared_ptr<Metrics> metrics)
    : service_(std::move(service)),
      tokens_(std::move(tokens)),
      metrics_(std::move(metrics)),
      launches_(std::make_shared<Launches>()),
      watchers_(std::make_shared<Watchers>()),
      rpc_(&router_.group("/")) {
  auto plain = [](http::Exchange& ex, const http::ErrorReply& reply) {
    ex.reply(reply.status, dialect::dump({{"code", reply.status}, {"message", reply.message}}));
  };
  rpc_->dress(plain);
  rpc_->filter([this](http::Exchange& ex) { return guard(ex); });
  add_process();
  add_filesystem();
  add_watchers();
  add_files();
  add_state();
}

Envd::~Envd() = default;

Task<void> Envd::serve(http::Exchange& ex, std::string sandbox) {
  ex.note(kSandbox, sandbox);
  co_await router_.dispatch(ex);
}

Task<bool> Envd::guard(http::Exchange& ex) {
  std::string id(ex.noted(kSandbox));
  if (!service_->ready()) {
    starting(ex, id);
    co_return false;
  }
  auto box = service_->find_any(id);
  // Asked for its health, one that is paused has none.
  bool asleep = box && may_wake(*service_, *box) && ex.path() != "/health";
  if (!box || (!is_running(*box) && !asleep)) {
    gone(ex, id);
    co_return false;
  }
  ex.note("key", (*box)->made_by());  // of which it is a right: what is open ends when that key is revoked
  bool open = ex.path() == "/health" || ex.path() == "/files";  // /files has a check of its own
  std::string token = tokens_->of(id, (*box)->made_by());
  if (!open && (token.empty() || !equal_secrets(ex.header("x-access-token"), token))) {
    unauthorized(ex, "unauthorized access, please provide a valid access token or method signing if supported");
    co_return false;
  }
  if (!open) ex.note("project", (*box)->project());  // who pays for the memory that its body takes
  // Calls of the Connect protocol wake it themselves: why that failed, each has to say in its own shape.
  const bool rpc = ex.path().starts_with("/process.") || ex.path().starts_with("/filesystem.");
  if (asleep && !open && !rpc) {
    auto woken = co_await wake(*service_, *box);
    if (!woken) {
      not_woken(*service_, ex, *box, woken.error());
      co_return false;
    }
  }
  co_return true;
}

Result<std::string> Envd::signed_for(const http::Exchange& ex) {
  auto nobodys = fail(Code::denied, "invalid signature");
  auto given = ex.query("signature");
  if (!given || !given->starts_with("v1_") || given->size() != kSignatureSize) return nobodys;
  std::optional<int64_t> expires;
  if (auto text = ex.query("signature_expiration")) {
    int64_t value = 0;
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) return nobodys;
    expires = value;
  }
  const char* operation = ex.method() == "POST" ? "write" : "read";
  if (!search_.take(service_->living()))
    return fail(Code::exhausted, "too many signed requests that do not say whose they are");
  for (const auto& [id, made_by] : service_->makers()) {
    auto wanted = sign_path(tokens_->of(id, made_by), operation, ex.query("path").value_or(""),
                            ex.query("username").value_or(""), expires);
    if (wanted && equal_secrets(*given, *wanted)) return id;
  }
  return nobodys;
}

void Envd::call(const char* path, Unary step, Size size) {
  auto service = service_;
  const size_t most = size == Size::input ? kMostInput : kMostEnvdBody;
  auto handler = [service, most, step = std::move(step)](http::Exchange& ex) -> Task<void> {
    auto call = co_await enter_rpc(*service, ex, Shape::call);
    if (!call) co_return;
    auto body = co_await read_call(ex, most);
    if (!body) co_return fail_rpc(ex, rpc_error(body.error()));
    call->body = std::move(*body);
    auto answer = co_await step(*call);
    if (answer) co_return ex.reply(200, dialect::dump(*answer));
    // Whoever ended it meanwhile: what failed is not the call's own doing.
    if (!is_running(call->box)) co_return gone(ex, call->box->id());
    fail_rpc(ex, rpc_error(answer.error()));
  };
  rpc_->add("POST", path, handler).body_limit = most;
}

void Envd::stream(const char* path, Streaming step) {
  auto service = service_;
  auto handler = [service, step = std::move(step)](http::Exchange& ex) -> Task<void> {
    auto call = co_await enter_rpc(*service, ex, Shape::stream);
    if (!call) co_return;
    RpcStream out(ex);
    auto body = co_await read_message(ex);
    if (!body) co_return co_await out.end(rpc_error(body.error()));
    call->body = std::move(*body);
    auto done = co_await step(*call, out);
    if (done) co_return;
    const bool left = co_await left_under(call->box);
    // A budget that is spent ends the sandbox. Whoever asked for too much hears of the budget, not of the end.
    const bool spent = done.error().code == Code::exhausted && !ex.replied();
    if (!left || spent) co_return co_await out.end(rpc_error(done.error()));
    cut_off(ex, call->box);
  };
  rpc_->add("POST", path, handler).body_limit = kMostEnvdBody;
}

void Envd::client_stream(const char* path, Listening step) {
  auto service = service_;
  auto handler = [service, step = std::move(step)](http::Exchange& ex) -> Task<void> {
    auto call = co_await enter_rpc(*service, ex, Shape::stream);
    if (!call) co_return;
    RpcStream out(ex);
    ex.body_time(kQuietInput);
    EnvelopeReader reader(kMostInput);
    std::optional<Shares::Share> share;  // of messages that are not whole yet, where they are large
    Result<void> done;
    while (done) {
      auto piece = co_await ex.read_some();
      if (!piece || piece->empty()) {
        if (!piece) done = std::unexpected(piece.error());
        break;
      }
      std::vector<json> messages;
      if (reader.held() + piece->size() > kFreeInput) {
        if (!share) share.emplace(dialect::waiting_input().of(call->box->project()));
        done = share->take_all(piece->size(), "input");
      }
      if (done) done = reader.feed(*piece);
      while (done) {
        auto text = reader.next();
        if (!text) break;
        auto message = parse_object(*text);
        if (message)
          messages.push_back(std::move(*message));
        else
          done = std::unexpected(message.error());
      }
      if (done && !messages.empty()) done = co_await step(*call, std::move(messages));
      if (reader.held() <= kFreeInput) share.reset();
    }
    if (!done) co_return co_await out.end(rpc_error(done.error()));
    out.hold("{}");
    co_await out.end();
  };
  rpc_->add("POST", path, handler).body_limit = http::Exchange::kNoLimit;
}

void Envd::add_state() {
  auto service = service_;
  rpc_->add("GET", "/health", [](http::Exchange& ex) -> Task<void> {
    ex.reply(204);
    co_return;
  });
  rpc_->add("GET", "/envs", [service](http::Exchange& ex) -> Task<void> {
    auto box = service->find_any(std::string(ex.noted(kSandbox)));
    if (!box) co_return gone(ex, std::string(ex.noted(kSandbox)));
    json env = (*box)->record().env;
    env["E2B_SANDBOX_ID"] = (*box)->id();
    ex.reply(200, dialect::dump(env));
  });
  rpc_->add("GET", "/metrics", [service, metrics = metrics_](http::Exchange& ex) -> Task<void> {
    auto box = service->find_any(std::string(ex.noted(kSandbox)));
    if (!box) co_return gone(ex, std::string(ex.noted(kSandbox)));
    auto past = co_await metrics->of(*box);
    if (!past) co_return ex.fail(past.error());
    if (past->empty()) co_return gone(ex, (*box)->id());  // it is on its way to sleep
    const auto* m = &past->back();
    ex.reply(200, dialect::dump({{"ts", m->at / 1000},
                                 {"cpu_count", m->cpus},
                                 {"cpu_used_pct", m->cpu_percent},
                                 {"mem_total", m->memory_total},
                                 {"mem_used", m->memory_used},
                                 {"mem_cache", m->memory_cache},
                                 {"disk_used", m->disk_used},
                                 {"disk_total", m->disk_total}}));
  });
}

}  // namespace isola::e2b
