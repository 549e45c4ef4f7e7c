#include "sandbox/box.h"

#include "sandbox/box_timers.h"

namespace isola::sandbox {

namespace {
constexpr size_t kFinishedKept = 256;
}

Box::Box(boost::asio::io_context& home, store::SandboxRecord record)
    : timers(std::make_unique<Timers>(home)),
      home_(home),
      id_(record.id),
      project_(record.project),
      made_by_(record.made_by),
      record_(std::move(record)),
      last_active_(record_.last_active) {}

Box::~Box() = default;

store::SandboxRecord Box::record() const {
  std::lock_guard lock(mutex_);
  auto record = record_;
  record.last_active = last_active_;
  return record;
}

void Box::change(const std::function<void(store::SandboxRecord&)>& change) {
  std::lock_guard lock(mutex_);
  ++version_;
  change(record_);
}

std::shared_ptr<const std::string> Box::text(size_t slot, const Make& make) {
  Text& kept = texts_.at(slot);
  Text fresh;
  store::SandboxRecord record;
  {
    std::lock_guard lock(mutex_);
    fresh.version = version_;
    fresh.last_active = last_active_;
    if (kept.version == fresh.version && kept.last_active == fresh.last_active) return kept.text;
    record = record_;
  }
  record.last_active = fresh.last_active;
  fresh.text = std::make_shared<const std::string>(make(record));
  std::lock_guard lock(mutex_);
  if (fresh.version >= kept.version) kept = fresh;
  return fresh.text;
}

State Box::state() const {
  std::lock_guard lock(mutex_);
  return record_.state;
}

bool Box::change_from(State expected, const std::function<void(store::SandboxRecord&)>& change) {
  std::lock_guard lock(mutex_);
  if (record_.state != expected) return false;
  ++version_;
  change(record_);
  return true;
}

Task<Box::Turn> Box::turn() {
  auto self = shared_from_this();
  for (;;) {
    uint64_t ticket = turn_bell_.ticket();
    {
      std::lock_guard lock(mutex_);
      if (!busy_) {
        busy_ = true;
        co_return Turn(self);
      }
    }
    co_await turn_bell_.wait(ticket);
  }
}

void Box::Turn::release() {
  auto box = std::exchange(box_, nullptr);
  if (!box) return;
  {
    std::lock_guard lock(box->mutex_);
    box->busy_ = false;
  }
  box->turn_bell_.ring();
}

bool Box::claim_end() {
  std::lock_guard lock(mutex_);
  if (finishing_ || store::is_asleep(record_.state)) return false;
  finishing_ = true;
  record_.state = State::ending;
  ++version_;
  return true;
}

void Box::set_ended() {
  change([](auto& r) { r.state = State::ended; });
  end_bell_.ring();
}

Task<void> Box::wait_ended() {
  auto self = shared_from_this();
  for (;;) {
    uint64_t ticket = end_bell_.ticket();
    if (state() == State::ended) co_return;
    co_await end_bell_.wait(ticket);
  }
}

void Box::set_ender(const Caller& caller) {
  std::lock_guard lock(mutex_);
  ender_ = caller;
}

Caller Box::ender() const {
  std::lock_guard lock(mutex_);
  return ender_;
}

bool Box::has_new_link() {
  std::lock_guard lock(mutex_);
  return std::exchange(new_link_, false);
}

void Box::set_link(std::shared_ptr<GuestLink> link) {
  std::lock_guard lock(mutex_);
  link_ = std::move(link);
}

void Box::link_may_be_silent(bool silent) {
  std::lock_guard lock(mutex_);
  if (link_) link_->may_be_silent(silent);
}

void Box::tell_later(std::function<void()> tell) {
  std::lock_guard lock(birth_mutex_);
  waiting_.push_back(std::move(tell));
  untold_ = true;
}

void Box::tell_birth() {
  if (!untold_) return;
  std::lock_guard lock(birth_mutex_);
  for (const auto& tell : std::exchange(waiting_, {})) tell();
  untold_ = false;
}

void Box::drop_link() {
  std::shared_ptr<GuestLink> gone;  // closed outside of the lock
  std::lock_guard lock(mutex_);
  gone.swap(link_);
}

void Box::close_link(Error why) {
  std::shared_ptr<GuestLink> gone;
  {
    std::lock_guard lock(mutex_);
    gone.swap(link_);
  }
  if (gone) gone->close(std::move(why));
}

void Box::set_shut(bool shut) {
  {
    std::lock_guard lock(mutex_);
    shut_ = shut;
  }
  if (!shut) link_bell_.ring();
}

bool Box::is_shut() const {
  std::lock_guard lock(mutex_);
  return shut_;
}

void Box::Shut::open() {
  if (auto box = std::exchange(box_, nullptr)) box->set_shut(false);
}

Task<Result<std::shared_ptr<GuestLink>>> Box::link(LauncherLink& launcher, Asks who) {
  for (;;) {
    uint64_t ticket = link_bell_.ticket();
    bool wait = false;
    {
      std::lock_guard lock(mutex_);
      if (record_.state == State::ended || (record_.state == State::ending && who != Asks::last_word))
        co_return fail(Code::not_found, "sandbox " + id_ + " has ended");
      wait = shut_ && who == Asks::anybody;
      if (!wait) {
        if (store::is_asleep(record_.state))
          co_return conflict("sandbox " + id_ + " is " + std::string(to_string(record_.state)) + "; resume it first");
        if (record_.state == State::frozen) co_return conflict("sandbox " + id_ + " is frozen; thaw it first");
        if (link_ && !link_->closed()) co_return link_;
        wait = linking_;
        linking_ = true;
      }
    }
    if (!wait) break;
    co_await link_bell_.wait(ticket);
  }
  // Also when whoever waits here is cancelled: nobody else may wait for a link that never comes.
  struct Over {
    Box& box;
    ~Over() {
      {
        std::lock_guard lock(box.mutex_);
        box.linking_ = false;
      }
      box.link_bell_.ring();
    }
  } over{*this};
  auto fds = co_await launcher.link(id_);
  std::shared_ptr<GuestLink> link;
  if (fds) link = GuestLink::start(home_, std::move(*fds), patience_, screening_);
  if (link) {
    std::lock_guard lock(mutex_);
    link_ = link;
    new_link_ = true;
  }
  if (!fds) co_return std::unexpected(std::move(fds).error());
  co_return link;
}

Box::Use::Use(std::shared_ptr<Box> box) : box_(std::move(box)) {
  ++box_->uses_;
  box_->last_active_ = now_millis();
}

Box::Use::~Use() {
  if (!box_) return;
  box_->last_active_ = now_millis();
  --box_->uses_;
}

std::optional<Box::Dial> Box::dial() {
  Dial one(shared_from_this());
  if (++dials_ > kMostDials) return std::nullopt;
  return one;
}

bool Box::remember(const CommandInfo& command) {
  std::lock_guard lock(mutex_);
  if (!commands_.emplace(command.id, command).second) return false;
  (void)spans_.begin(command.task, command.started);
  return true;
}

std::optional<CommandInfo> Box::find_command(const std::string& id) const {
  std::lock_guard lock(mutex_);
  if (auto at = commands_.find(id); at != commands_.end()) return at->second;
  const CommandInfo* best = nullptr;  // a number: the newest with that pid
  for (const auto& [key, command] : commands_)
    if (std::to_string(command.pid) == id && (!best || command.started >= best->started)) best = &command;
  if (best) return *best;
  return std::nullopt;
}

std::vector<CommandInfo> Box::commands() const {
  std::lock_guard lock(mutex_);
  std::vector<CommandInfo> all;
  for (const auto& [id, command] : commands_) all.push_back(command);
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.started < b.started; });
  return all;
}

void Box::add_code(const std::shared_ptr<CodeRun>& run) {
  std::lock_guard lock(mutex_);
  std::erase_if(code_, [](const auto& one) { return one.expired(); });
  code_.push_back(run);
}

std::vector<std::shared_ptr<CodeRun>> Box::code() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CodeRun>> all;
  for (const auto& one : code_)
    if (auto run = one.lock()) all.push_back(std::move(run));
  return all;
}

uint64_t Box::task_begins(const std::string& task) {
  std::lock_guard lock(mutex_);
  return spans_.begin(task, now_millis());
}

void Box::task_ends(const std::string& task, uint64_t born) {
  std::lock_guard lock(mutex_);
  spans_.end(task, now_millis(), born);
}

std::vector<std::string> Box::tasks_during(Millis from, Millis to) const {
  std::lock_guard lock(mutex_);
  return spans_.during(from, to);
}

void Box::forget_oom_kills() {
  std::lock_guard lock(mutex_);
  for (auto& [id, command] : commands_) command.oom_kills = 0;
}

void Box::forget_commands() {
  std::lock_guard lock(mutex_);
  commands_.clear();
  spans_.end_all(now_millis());
  finished_.clear();
  watched_.clear();
}

void Box::input_closed(const std::string& id) {
  std::lock_guard lock(mutex_);
  if (auto at = commands_.find(id); at != commands_.end()) at->second.takes_input = false;
}

Box::Watching Box::watch(const std::string& id) {
  std::lock_guard lock(mutex_);
  if (watched_.contains(id)) return Watching::already;
  if (watched_.size() >= kMostWatched) return Watching::full;
  watched_.insert(id);
  return Watching::yes;
}

void Box::unwatch(const std::string& id) {
  std::lock_guard lock(mutex_);
  watched_.erase(id);
}

void Box::command_stopped(const std::string& id, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (auto at = commands_.find(id); at != commands_.end()) at->second.stopped = why;
}

bool Box::command_ended(const std::string& id, const guest::Exit& exit) {
  std::lock_guard lock(mutex_);
  auto at = commands_.find(id);
  if (at == commands_.end() || at->second.ended != 0) return false;
  at->second.exit = exit;
  at->second.ended = now_millis();
  spans_.end(at->second.task, at->second.ended, spans_.generation());  // those of before are forgotten
  finished_.push_back(id);
  if (finished_.size() > kFinishedKept) {
    commands_.erase(finished_.front());
    finished_.pop_front();
  }
  return true;
}

}  // namespace isola::sandbox
