// Watches that outlive the call that made them: clients that cannot hold a stream open come and fetch what happened.
//
//   ISOLA_CO_TRY(std::string id, all.add(box, watcher));
//   watcher->put(R"({"name":"a","type":"EVENT_TYPE_CREATE"})");    // false: too much that nobody fetched
//   Result<std::string> events = watcher->take();                  // "{…},{…}"
//
// Any thread. They go with their sandboxes.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "sandbox/box.h"

namespace isola::e2b {

class Watchers {
 public:
  static constexpr size_t kMostBytes = 1 << 20;       // of events that nobody fetched, in one watcher
  static constexpr size_t kMostBytesOfBox = 4 << 20;  // … in all of a sandbox
  static constexpr size_t kMostPerSandbox = 256;

  class Watcher {
   public:
    explicit Watcher(sandbox::ChannelPtr channel) : channel_(std::move(channel)) {}
    ~Watcher();
    // One event as JSON. false: there is no room for it.
    bool put(std::string_view event);
    // It is over: its events are forgotten, and whoever comes for them is told why.
    void fail(Error why);
    Result<std::string> take();  // all of them, with commas between
    void set_ended();            // no more are to come; those that are here can still be fetched
    void cancel();

   private:
    friend class Watchers;
    sandbox::ChannelPtr channel_;
    std::mutex mutex_;
    std::string events_;
    std::optional<Error> error_;
    bool ended_ = false;
    std::shared_ptr<std::atomic<size_t>> of_box_ = std::make_shared<std::atomic<size_t>>(0);
  };
  using WatcherPtr = std::shared_ptr<Watcher>;

  Result<std::string> add(const sandbox::BoxPtr& box, const WatcherPtr& watcher);  // its id
  WatcherPtr find(const std::string& sandbox, const std::string& id) const;
  void remove(const std::string& sandbox, const std::string& id);
  size_t size() const;

 private:
  struct OfBox {
    std::weak_ptr<sandbox::Box> box;
    std::map<std::string, WatcherPtr> by_id;
    std::shared_ptr<std::atomic<size_t>> bytes = std::make_shared<std::atomic<size_t>>(0);
  };
  mutable std::mutex mutex_;
  std::map<std::string, OfBox> boxes_;
  size_t sweep_at_ = 64;
};

}  // namespace isola::e2b
