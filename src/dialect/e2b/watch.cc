// filesystem.Filesystem's watching, as a stream and by fetching.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "dialect/e2b/entries.h"
#include "dialect/e2b/envd.h"
#include "dialect/e2b/watchers.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;
using sandbox::ChannelPtr;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

namespace {

const char* word(guest::Change change) {
  switch (change) {
    case guest::Change::created:
    case guest::Change::moved_to: return "EVENT_TYPE_CREATE";
    case guest::Change::modified: return "EVENT_TYPE_WRITE";
    case guest::Change::removed: return "EVENT_TYPE_REMOVE";
    case guest::Change::moved_from: return "EVENT_TYPE_RENAME";
    case guest::Change::attributes: return "EVENT_TYPE_CHMOD";
    default: return nullptr;
  }
}

struct Watched {
  std::string path;  // as the client knows it
  ChannelPtr channel;
  bool with_entries = false;
};

Task<Result<Watched>> begin(Call& call) {
  ISOLA_CO_TRY(std::string path, co_await call.path("path"));
  auto place = co_await place_at(call, path);
  if (!place && place.error().code == Code::not_found)
    co_return fail(Code::not_found, "path " + path + " not found: stat " + path + ": no such file or directory");
  if (!place) co_return std::unexpected(std::move(place).error());
  if (place->stat.type != guest::FileType::dir) co_return fail(Code::invalid, "path " + path + " not a directory");
  guest::Watch args{.path = place->path, .user = "", .recursive = flag_of(call.body, "recursive")};
  std::string bytes = guest::encode(args);
  auto op = flag_of(call.body, "allowNetworkMounts") ? guest::Op::watch : guest::Op::watch_local;
  auto channel = call.link->open(op, bytes);
  auto ready = co_await channel->reply();
  if (!ready && op == guest::Op::watch_local && ready.error().code == Code::unsupported) {
    channel = call.link->open(guest::Op::watch, bytes);  // a guest of an earlier version
    ready = co_await channel->reply();
  }
  if (!ready) co_return std::unexpected(std::move(ready).error());
  co_return Watched{place->path, channel, flag_of(call.body, "includeEntry")};
}

// The events of one frame. internal: some were lost, and nobody knows which.
Task<Result<std::vector<json>>> events_of(Inside& inside, const Watched& watched, const std::string& frame) {
  std::vector<guest::WatchEvent> raw;
  if (!guest::each_record<guest::WatchEvent>(frame, [&](const guest::WatchEvent& e) { raw.push_back(e); }))
    co_return fail(Code::internal, "the sandbox sent malformed events");
  std::vector<json> out;
  for (const auto& event : raw) {
    if (event.change == guest::Change::overflow) co_return fail(Code::internal, "watcher error: events were lost");
    if (event.change == guest::Change::limit)
      co_return fail(Code::internal, "watcher error: there are too many folders to watch");
    const char* type = word(event.change);
    if (!type) continue;
    json told = {{"name", event.path}, {"type", type}};
    bool there = event.change != guest::Change::removed && event.change != guest::Change::moved_from;
    if (watched.with_entries && there) {
      std::string path = watched.path + "/" + event.path;
      auto entry = co_await entry_at(inside, path);
      if (entry) told["entry"] = *entry;
    }
    out.push_back(std::move(told));
  }
  co_return out;
}

Task<Result<void>> watch(Call& call, RpcStream& out) {
  ISOLA_CO_TRY(Watched watched, co_await begin(call));
  ISOLA_CO_TRY(auto timeout, timeout_of(call.ex));
  std::optional<Clock::time_point> deadline;
  if (timeout) deadline = Clock::now() + milliseconds(*timeout);
  const auto every = milliseconds(keepalive_of(call.ex));
  std::string event = R"({"start":{}})";
  if (auto sent = co_await out.send(event); !sent) co_return Result<void>();
  auto spoken = Clock::now();
  for (;;) {
    auto now = Clock::now();
    if (deadline && now >= *deadline) co_return fail(Code::timeout, "context deadline exceeded");
    auto wait = std::max(milliseconds(1), std::chrono::ceil<milliseconds>(spoken + every - now));
    if (deadline) wait = std::min(wait, std::max(milliseconds(1), std::chrono::ceil<milliseconds>(*deadline - now)));
    auto frame = co_await watched.channel->read_frame_for(wait);
    if (!frame) break;
    if (frame->empty()) {
      if (Clock::now() - spoken < every) continue;
      event = R"({"keepalive":{}})";
    } else {
      ISOLA_CO_TRY(auto told, co_await events_of(call, watched, *frame));
      if (told.empty()) continue;
      for (size_t i = 0; i + 1 < told.size(); ++i) out.hold(dialect::dump({{"filesystem", told[i]}}));
      event = dialect::dump({{"filesystem", told.back()}});
    }
    if (auto sent = co_await out.send(event); !sent) co_return Result<void>();
    spoken = Clock::now();
  }
  auto end = co_await watched.channel->end();
  if (!end) co_return std::unexpected(std::move(end).error());
  co_await out.end();
  co_return Result<void>();
}

// Gathers events until the watch, or its sandbox, ends. It holds no Use: nobody is there.
Task<void> gather(std::shared_ptr<Watchers> all, std::string sandbox, std::string id, Watchers::WatcherPtr watcher,
                  std::shared_ptr<Watched> watched, std::shared_ptr<Inside> inside) {
  for (;;) {
    auto frame = co_await watched->channel->read_frame();
    if (!frame) break;
    auto told = co_await events_of(*inside, *watched, *frame);
    if (!told) co_return watcher->fail(told.error());
    for (const auto& event : *told)
      if (!watcher->put(dialect::dump(event)))
        co_return watcher->fail({Code::internal, "watcher error: nobody fetched the events, and there are too many"});
  }
  // Its folder was removed: what was seen of that is still to be fetched, and its watcher to be stopped.
  auto end = co_await watched->channel->end();
  if (!end && end.error().code == Code::not_found) co_return watcher->set_ended();
  all->remove(sandbox, id);
}

Task<Result<json>> create_watcher(Call& call, std::shared_ptr<Watchers> all) {
  ISOLA_CO_TRY(Watched begun, co_await begin(call));
  auto watcher = std::make_shared<Watchers::Watcher>(begun.channel);
  ISOLA_CO_TRY(std::string id, all->add(call.box, watcher));
  auto watched = std::make_shared<Watched>(std::move(begun));
  auto inside = std::make_shared<Inside>();
  inside->link = call.link;
  boost::asio::co_spawn(call.box->home(), gather(all, call.box->id(), id, watcher, watched, inside),
                        boost::asio::detached);
  co_return json{{"watcherId", id}};
}

Result<Watchers::WatcherPtr> watcher_of(const Call& call, const Watchers& all) {
  std::string id = text_of(call.body, "watcherId");
  auto watcher = all.find(call.box->id(), id);
  if (!watcher) return fail(Code::not_found, "watcher with id " + id + " not found");
  return watcher;
}

Task<Result<json>> fetch(Call& call, Watchers& all) {
  ISOLA_CO_TRY(auto watcher, watcher_of(call, all));
  // What the guest saw before this call is here after it.
  std::string nothing;
  ISOLA_CO_TRY(std::string pong, co_await call.link->call(guest::Op::ping, nothing));
  auto events = watcher->take();
  if (!events) {
    all.remove(call.box->id(), text_of(call.body, "watcherId"));  // there is no more to come
    co_return std::unexpected(std::move(events).error());
  }
  if (events->empty()) co_return json::object();
  co_return json{{"events", json::parse("[" + *events + "]", nullptr, false)}};
}

Task<Result<json>> remove_watcher(Call& call, Watchers& all) {
  ISOLA_CO_TRY(auto watcher, watcher_of(call, all));
  watcher->cancel();
  all.remove(call.box->id(), text_of(call.body, "watcherId"));
  co_return json::object();
}

}  // namespace

void Envd::add_watchers() {
  auto all = watchers_;
  stream("/filesystem.Filesystem/WatchDir", watch);
  call("/filesystem.Filesystem/CreateWatcher", [all](Call& c) { return create_watcher(c, all); });
  call("/filesystem.Filesystem/GetWatcherEvents", [all](Call& c) { return fetch(c, *all); });
  call("/filesystem.Filesystem/RemoveWatcher", [all](Call& c) { return remove_watcher(c, *all); });
}

}  // namespace isola::e2b
