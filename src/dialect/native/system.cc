// The server about itself: healthz, readyz, metrics, info, the contract.
#include <fmt/format.h>

#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <mutex>
#include <nlohmann/json.hpp>

#include "boundary/choice.h"
#include "dialect/native/api.h"
#include "dialect/native/openapi.h"
#include "dialect/native/views.h"
#include "image/template_cache.h"

namespace isola::native {

using nlohmann::json;

namespace {

json boundaries_json(const std::vector<boundary::Offer>& offers) {
  json all = json::array();
  for (const auto& offer : offers) {
    json one = {{"boundary", to_string(offer.kind)}, {"offered", offer.offered}};
    if (offer.offered)
      one.update({{"engine", offer.engine.name},
                  {"engine_version", offer.engine.version},
                  {"accelerated", offer.engine.accelerated},
                  {"detail", offer.detail}});
    else
      one["missing"] = offer.missing;
    all.push_back(std::move(one));
  }
  return all;
}

std::string prometheus(sandbox::Service& service) {
  std::string out;
  auto line = [&](const char* name, const char* type, const char* help, auto value) {
    out += fmt::format("# HELP isola_{0} {1}\n# TYPE isola_{0} {2}\nisola_{0} {3}\n", name, help, type, value);
  };
  const auto& c = service.counters;
  line("sandboxes", "gauge", "Living sandboxes.", service.living());
  line("sandboxes_idle", "gauge", "Running sandboxes that nobody used for ten minutes.", service.idle());
  line("sandboxes_created_total", "counter", "Sandboxes created.", c.created.load());
  line("sandboxes_ended_total", "counter", "Sandboxes ended.", c.ended.load());
  line("sandbox_create_failures_total", "counter", "Creates that failed.", c.create_failures.load());
  line("sandbox_create_seconds_sum", "counter", "Time spent in creates.",
       static_cast<double>(c.create_nanos.load()) / 1e9);
  auto family = [&](const char* name, const char* help, auto value) {
    out += fmt::format("# HELP isola_{0} {1}\n# TYPE isola_{0} counter\n", name, help);
    for (size_t i = 0; i < c.create_steps.size(); ++i)
      if (c.create_steps[i].count > 0)
        out += fmt::format("isola_{}{{step=\"{}\"}} {}\n", name, to_string(static_cast<::isola::Step>(i)),
                           value(c.create_steps[i]));
  };
  family("sandbox_create_step_seconds_sum", "Time of creates, by the step that it went to.",
         [](const auto& step) { return static_cast<double>(step.nanos.load()) / 1e9; });
  family("sandbox_create_step_seconds_count", "Creates that had the step.",
         [](const auto& step) { return step.count.load(); });
  line("pool_hits_total", "counter", "Creates that took a parked sandbox.", c.pool_hits.load());
  line("pool_misses_total", "counter", "Creates that could have taken a parked sandbox and found none.",
       c.pool_misses.load());
  const auto pooling = service.pooling();
  line("pools", "gauge", "Templates and images of which some are kept parked.", pooling.pools);
  line("pool_wanted", "gauge", "Parked sandboxes that demand asks for, of all of them.", pooling.wanted);
  line("pool_memory_bytes", "gauge", "What those take at most.", pooling.bytes);
  line("sandboxes_paused_total", "counter", "Pauses.", c.paused.load());
  line("sandboxes_resumed_total", "counter", "Resumes.", c.resumed.load());
  line("sandboxes_forked_total", "counter", "Forked children.", c.forked.load());
  line("commands_total", "counter", "Commands started.", c.commands.load());
  line("ready", "gauge", "1 when the server takes requests and its launcher is there.", service.able() ? 1 : 0);
  return out;
}

// Anybody may ask, so the launcher is asked once a second at most, and not waited for.
class Readiness {
 public:
  Task<bool> look(sandbox::Service& service) {
    using namespace boost::asio::experimental::awaitable_operators;
    auto now = std::chrono::steady_clock::now();
    if (!service.able()) co_return false;
    {
      std::lock_guard lock(mutex_);
      if (asking_ || now - at_ < std::chrono::seconds(1)) co_return answers_;
      asking_ = true;
    }
    boost::asio::steady_timer patience(co_await boost::asio::this_coro::executor, std::chrono::seconds(2));
    bool answers = false;
    try {
      auto first = co_await (service.info() || patience.async_wait(boost::asio::use_awaitable));
      answers = first.index() == 0 && std::get<0>(first).has_value();
    } catch (const std::exception&) {  // a broken timer: as good as no answer
    }
    std::lock_guard lock(mutex_);
    asking_ = false;
    answers_ = answers;
    at_ = std::chrono::steady_clock::now();
    co_return answers&& service.able();
  }

 private:
  std::mutex mutex_;
  bool asking_ = false, answers_ = false;
  std::chrono::steady_clock::time_point at_{};
};

}  // namespace

void Api::add_system(http::Router& router, http::RouteGroup& group) {
  auto service = service_;
  router.add("GET", "/healthz", [](http::Exchange& ex) -> ::isola::Task<void> {
    ex.reply(200, "{\"ok\":true}");
    co_return;
  });
  auto readiness = std::make_shared<Readiness>();
  router.add("GET", "/readyz", [service, readiness](http::Exchange& ex) -> ::isola::Task<void> {
    bool ready = co_await readiness->look(*service);
    if (!ready) ex.set_header("Retry-After", "1");
    ex.reply(ready ? 200 : 503, dump({{"ready", ready}}));
  });
  router.add("GET", "/openapi.json", [](http::Exchange& ex) -> ::isola::Task<void> {
    ex.reply(200, std::string(openapi_text()));
    co_return;
  });
  group.add("GET", "/v1/metrics",
            handled(store::Scope::read, [service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ex.reply(200, prometheus(*service), "text/plain; version=0.0.4");
              co_return Result<void>();
            }));
  // For scrapers, which have no key: counts of the whole server, nothing of any tenant.
  router.add("GET", "/metrics", [this, service](http::Exchange& ex) -> ::isola::Task<void> {
    if (!door_.welcomes(ex)) co_return;
    ex.reply(200, prometheus(*service), "text/plain; version=0.0.4");
    co_return;
  });
  group.add("GET", "/v1/info", handled([service](http::Exchange& ex) -> ::isola::Task<Result<void>> {
              ISOLA_CO_TRY(auto info, co_await service->info());
              ISOLA_CO_TRY(auto used, service->store().project_use(project_of(ex)));
              auto chosen = boundary::choose({}, info.boundaries);
              const std::string usual(chosen ? to_string(*chosen) : "");
              ex.reply(200, dump({{"version", ISOLA_VERSION},
                                  {"boundary", usual},
                                  {"shared_kernel", usual == to_string(BoundaryKind::jail)},
                                  {"boundaries", boundaries_json(info.boundaries)},
                                  {"layer_store", info.layer_store},
                                  {"disk_enforced", info.disk_enforced},
                                  {"sandboxes", used.live_sandboxes},
                                  {"project", project_of(ex)},
                                  {"scope", std::string(ex.noted("scope"))},
                                  {"protections", info.protections}}));
              co_return Result<void>();
            }));
}

}  // namespace isola::native
