#include "gate/lookup.h"

#include <ares.h>
#include <netdb.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/log.h"

namespace isola::gate {

namespace {

constexpr int kTimeoutMs = 2000, kTries = 3;
constexpr size_t kMaxAddresses = 8, kMaxUnderWay = 4096;
constexpr char kResolvConf[] = "/etc/resolv.conf";

class CaresUpstream : public Upstream {
 public:
  CaresUpstream(Loop& loop, std::string servers) : loop_(loop), servers_(std::move(servers)) {}
  ~CaresUpstream() override {
    closing_ = true;
    close();
    ares_library_cleanup();
  }

  Result<void> open() {
    ares_options options{};
    // Names are whole as they are: no search list, no aliases from the environment.
    options.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES;
    options.timeout = kTimeoutMs;
    options.tries = kTries;
    options.sock_state_cb = [](void* self, ares_socket_t fd, int read, int write) {
      static_cast<CaresUpstream*>(self)->watch(fd, read != 0, write != 0);
    };
    options.sock_state_cb_data = this;
    char order[] = "fb";
    options.lookups = order;
    int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB | ARES_OPT_LOOKUPS;
    if (int bad = ares_init_options(&channel_, &options, mask); bad != ARES_SUCCESS)
      return fail(Code::internal, std::string("cannot read the host's resolver configuration: ") + ares_strerror(bad));
    if (!servers_.empty())
      if (int bad = ares_set_servers_ports_csv(channel_, servers_.c_str()); bad != ARES_SUCCESS)
        return fail(Code::invalid, "not a list of name servers: " + servers_);
    configured_ = configuration();
    return {};
  }

  void look_up(const std::string& name, std::function<void(Answer)> done) override {
    if (servers_.empty() && !inside_ && configuration() != configured_) reopen();
    if (!channel_ || under_way_ >= kMaxUnderWay) return done({});
    ask(name, std::move(done));
  }

 private:
  struct One {
    CaresUpstream* self;
    std::string name;
    std::function<void(Answer)> done;
  };

  // In a call of c-ares, whose callbacks may ask for more: its channel must outlive that.
  struct Inside {
    explicit Inside(CaresUpstream& self) : upstream(self) { ++upstream.inside_; }
    ~Inside() { --upstream.inside_; }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    CaresUpstream& upstream;
  };

  // The host has other servers now: whoever waits for an answer of the old ones asks the new ones.
  void reopen() {
    Inside inside(*this);
    reopening_ = true;
    close();
    if (auto opened = open(); !opened) log::error("gate", "{}", opened.error().message);
    reopening_ = false;
    for (auto& one : std::exchange(again_, {})) {
      if (channel_)
        ask(one->name, std::move(one->done));
      else
        one->done({});
    }
  }

  void ask(const std::string& name, std::function<void(Answer)> done) {
    ++under_way_;
    auto* one = new One{this, name, std::move(done)};  // freed by finish(), which c-ares always calls
    ares_addrinfo_hints hints{.ai_flags = 0, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_protocol = 0};
    Inside inside(*this);
    ares_getaddrinfo(channel_, name.c_str(), nullptr, &hints, &CaresUpstream::finish, one);
    arm();
  }

  // What tells whether the file is still the one that was read.
  static std::pair<ino_t, int64_t> configuration() {
    struct stat st{};
    if (::stat(kResolvConf, &st) < 0) return {};
    return {st.st_ino, st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec};
  }

  void close() {
    if (timer_) loop_.cancel(*std::exchange(timer_, std::nullopt));
    if (channel_) ares_destroy(std::exchange(channel_, nullptr));
  }

  static void finish(void* arg, int status, int, ares_addrinfo* info) {
    std::unique_ptr<One> one(static_cast<One*>(arg));
    --one->self->under_way_;
    if (one->self->reopening_ && (status == ARES_EDESTRUCTION || status == ARES_ECANCELLED)) {
      auto& again = one->self->again_;
      again.push_back(std::move(one));
      return;
    }
    Answer answer;
    if (status == ARES_SUCCESS && info) {
      uint32_t ttl = 3600;
      for (auto* node = info->nodes; node; node = node->ai_next) {
        auto address = Address::of(node->ai_addr);
        if (!address || answer.addresses.size() == kMaxAddresses) continue;
        if (std::find(answer.addresses.begin(), answer.addresses.end(), *address) != answer.addresses.end()) continue;
        answer.addresses.push_back(*address);
        ttl = std::min(ttl, static_cast<uint32_t>(std::max(node->ai_ttl, 0)));
      }
      answer.ttl = std::chrono::seconds(ttl);
      answer.state = answer.addresses.empty() ? Answer::State::no_address : Answer::State::found;
    } else if (status == ARES_ENOTFOUND) {
      answer.state = Answer::State::no_such_name;
    } else if (status == ARES_ENODATA) {
      answer.state = Answer::State::no_address;
    }
    if (info) ares_freeaddrinfo(info);
    if (!one->self->closing_) one->done(std::move(answer));
  }

  void watch(int fd, bool read, bool write) {
    uint32_t events = (read ? EPOLLIN : 0u) | (write ? EPOLLOUT : 0u);
    auto it = sockets_.find(fd);
    if (events == 0) {
      if (it == sockets_.end()) return;
      loop_.remove(fd);
      loop_.retire(std::move(it->second));
      sockets_.erase(it);
      return;
    }
    if (it != sockets_.end()) {
      (void)loop_.change(fd, events, *it->second);
      return;
    }
    auto handler = std::make_unique<Callback>([this, fd](uint32_t ready) {
      Inside inside(*this);
      ares_process_fd(channel_, ready & ~EPOLLOUT ? fd : ARES_SOCKET_BAD, ready & EPOLLOUT ? fd : ARES_SOCKET_BAD);
      arm();
    });
    // A socket that cannot be watched stays silent, and its question times out.
    if (loop_.add(fd, events, *handler)) sockets_[fd] = std::move(handler);
  }

  void arm() {
    if (timer_) loop_.cancel(*std::exchange(timer_, std::nullopt));
    timeval most{5, 0}, left{};
    if (!channel_ || under_way_ == 0 || !ares_timeout(channel_, &most, &left)) return;
    timer_ = loop_.after(std::chrono::seconds(left.tv_sec) + std::chrono::microseconds(left.tv_usec + 1000), [this] {
      timer_.reset();
      Inside inside(*this);
      ares_process_fd(channel_, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
      arm();
    });
  }

  Loop& loop_;
  std::string servers_;
  ares_channel channel_ = nullptr;
  std::pair<ino_t, int64_t> configured_;
  size_t under_way_ = 0;
  int inside_ = 0;
  bool closing_ = false, reopening_ = false;
  std::vector<std::unique_ptr<One>> again_;
  std::map<int, std::unique_ptr<Handler>> sockets_;
  std::optional<Loop::TimerId> timer_;
};

}  // namespace

Result<std::unique_ptr<Upstream>> make_upstream(Loop& loop, const std::string& servers) {
  if (int bad = ares_library_init(ARES_LIB_INIT_ALL); bad != ARES_SUCCESS)
    return fail(Code::internal, std::string("cannot start the resolver: ") + ares_strerror(bad));
  auto upstream = std::make_unique<CaresUpstream>(loop, servers);
  ISOLA_CHECK(upstream->open());
  return upstream;
}

}  // namespace isola::gate
