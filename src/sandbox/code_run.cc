#include "sandbox/code_run.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "sandbox/json_text.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

Task<Result<std::shared_ptr<CodeRun>>> Service::begin_code(BoxPtr box, CodeRun::Spec spec) {
  if (spec.task.size() > kMaxWord || spec.by.actor.size() > kMaxWord)
    co_return fail(Code::invalid, "task and actor: at most 256 bytes");
  // A sandbox that cannot run anything is not asked whether it may.
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  auto own = box->record().task;
  if (spec.task.empty()) spec.task = own;
  ISOLA_CO_CHECK(may_run(box, spec.task));
  bool visits = spec.task != own;
  if (visits) co_await take_stock(box);
  auto run = std::make_shared<CodeRun>(shared_from_this(), box, std::move(spec));
  accounts_.command_begins(*box, run->task());
  box->add_code(run);
  if (visits) arm(box);  // its budget may want more looks
  co_return run;
}

// Counts it no more; `happened`: it was one.
void Service::code_over(const BoxPtr& box, const std::string& task, uint64_t span, bool happened) {
  box->task_ends(task, span);
  if (!happened) accounts_.give_back_command(*box, task);
  if (task == box->record().task)
    accounts_.command_ends(*box, task);
  else
    net::co_spawn(box->home(), forget_task_of(box, task), net::detached);
}

CodeRun::CodeRun(std::shared_ptr<Service> service, BoxPtr box, Spec spec)
    : service_(std::move(service)),
      box_(std::move(box)),
      spec_(std::move(spec)),
      id_(new_command_id()),
      span_(box_->task_begins(spec_.task)) {}

CodeRun::~CodeRun() {
  if (started_ && !ended_) finish("abandoned", now_millis() - begun_);
  service_->code_over(box_, spec_.task, span_, started_);
}

void CodeRun::started(const std::string& language, const std::string& context) {
  if (started_) return;
  started_ = true;
  begun_ = now_millis();
  ++service_->counters.commands;
  json data = {{"command_id", id_},
               {"command", spec_.code},
               {"language", language.substr(0, kMaxWord)},
               {"context", context.substr(0, kMaxWord)}};
  auto begun = service_->event_of(ledger::Kind::command_started, box_, dumped(data), spec_.by, spec_.task);
  service_->accounts_.tell_start(*box_, spec_.task, [&] { service_->record(std::move(begun)); });
}

void CodeRun::ended(const std::string& status, int64_t duration_ms) {
  if (started_ && !ended_) finish(status, duration_ms);
}

void CodeRun::finish(const std::string& status, int64_t duration_ms) {
  ended_ = true;
  json data = {{"command_id", id_}, {"status", status.substr(0, kMaxWord)}, {"duration_ms", duration_ms}};
  {
    std::lock_guard lock(mutex_);
    if (!why_.empty()) data["reason"] = "limit", data["detail"] = why_;
  }
  service_->record(ledger::Kind::command_ended, box_, dumped(data), spec_.by, spec_.task);
}

void CodeRun::stop(std::string why) {
  {
    std::lock_guard lock(mutex_);
    if (why_.empty()) why_ = std::move(why);
  }
  bell_.ring();
}

Task<std::string> CodeRun::stopped() {
  for (;;) {
    uint64_t ticket = bell_.ticket();
    {
      std::lock_guard lock(mutex_);
      if (!why_.empty()) co_return why_;
    }
    co_await bell_.wait(ticket);
  }
}

}  // namespace isola::sandbox
