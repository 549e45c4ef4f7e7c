// isola bucket-relay: the way from the client that serves a bucket to its endpoint, and to nowhere else. The launcher
// starts it (launcher/bucket.h), with the descriptors that are named there.
#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "cli/register.h"
#include "gate/address.h"
#include "kernel/process.h"
#include "launcher/bucket.h"

namespace isola::cli {

namespace {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

constexpr auto kDialTime = std::chrono::seconds(5);
constexpr size_t kMostLog = 2000;

class Relay {
 public:
  Relay(std::string host, std::string port, pid_t client, bool inside)
      : host_(std::move(host)), port_(std::move(port)), pid_(client), inside_(inside) {}
  int run();

 private:
  net::awaitable<void> accept();
  net::awaitable<void> forward(tcp::socket from);
  net::awaitable<bool> dial(tcp::socket& to);
  static net::awaitable<void> pump(tcp::socket& from, tcp::socket& to);
  net::awaitable<void> listen_to_client();
  net::awaitable<void> await_end();
  bool may_dial(const tcp::endpoint& to) const;
  void probed(int error);
  void tell_failure();

  std::string host_, port_;
  pid_t pid_;
  bool inside_;
  net::io_context context_{1};
  Fd control_{launcher::kRelayControl}, mount_{launcher::kRelayMount};
  tcp::acceptor acceptor_{context_, tcp::v4(), launcher::kRelayListener};
  net::posix::stream_descriptor log_{context_, launcher::kRelayLog};
  net::posix::stream_descriptor client_{context_, launcher::kRelayClient};
  std::string said_;                                                         // by the client, the end of it
  net::steady_timer heard_{context_, net::steady_timer::time_point::max()};  // until all of it was heard
  bool mounted_ = false;
};

// What is judged is the address that is dialled. Where clouds hand out credentials, nobody's bucket is.
bool Relay::may_dial(const tcp::endpoint& to) const {
  auto address = gate::Address::of(to.data());
  if (!address) return false;
  using enum gate::Place;
  const auto place = gate::place_of(*address).place;
  return place == open || (inside_ && (place == local || place == loopback || place == link_local));
}

net::awaitable<bool> Relay::dial(tcp::socket& to) {
  error_code error;
  auto token = net::redirect_error(net::use_awaitable, error);
  tcp::resolver resolver(context_);
  net::steady_timer limit(context_, kDialTime);
  limit.async_wait([&](error_code cancelled) {
    if (!cancelled) resolver.cancel(), to.close(cancelled);
  });
  auto found = co_await resolver.async_resolve(host_, port_, tcp::resolver::numeric_service, token);
  if (error) co_return false;
  for (const auto& entry : found) {
    if (!may_dial(entry.endpoint())) continue;
    error_code closed;
    to.close(closed);
    co_await to.async_connect(entry.endpoint(), token);
    if (!error) break;
    if (limit.expiry() <= std::chrono::steady_clock::now()) co_return false;
  }
  limit.cancel();
  co_return !error && to.is_open();
}

net::awaitable<void> Relay::pump(tcp::socket& from, tcp::socket& to) {
  std::array<char, 64 << 10> buffer;
  error_code error;
  auto token = net::redirect_error(net::use_awaitable, error);
  for (;;) {
    size_t n = co_await from.async_read_some(net::buffer(buffer), token);
    if (error) break;
    co_await net::async_write(to, net::buffer(buffer, n), token);
    if (error) break;
  }
  // One side that has ended is told to the other; one that broke ends both.
  error_code ignored;
  if (error == net::error::eof) {
    to.shutdown(tcp::socket::shutdown_send, ignored);
  } else {
    from.close(ignored);
    to.close(ignored);
  }
}

net::awaitable<void> Relay::forward(tcp::socket from) {
  auto pair = std::make_shared<std::pair<tcp::socket, tcp::socket>>(std::move(from), tcp::socket(context_));
  const bool there = co_await dial(pair->second);
  if (!there) co_return;
  error_code ignored;
  for (auto* socket : {&pair->first, &pair->second}) socket->set_option(tcp::no_delay(true), ignored);
  net::co_spawn(
      context_, [pair]() -> net::awaitable<void> { co_await pump(pair->second, pair->first); }, net::detached);
  co_await pump(pair->first, pair->second);
}

net::awaitable<void> Relay::accept() {
  for (;;) {
    error_code error;
    auto from = co_await acceptor_.async_accept(net::redirect_error(net::use_awaitable, error));
    if (!error) {
      net::co_spawn(context_, forward(std::move(from)), net::detached);
      continue;
    }
    net::steady_timer pause(context_, std::chrono::milliseconds(100));
    co_await pause.async_wait(net::redirect_error(net::use_awaitable, error));
  }
}

// It is read to its end: a client that nobody listens to would wait.
net::awaitable<void> Relay::listen_to_client() {
  std::array<char, 4096> buffer;
  error_code error;
  for (;;) {
    size_t n = co_await log_.async_read_some(net::buffer(buffer), net::redirect_error(net::use_awaitable, error));
    if (error) break;
    said_.append(buffer.data(), n);
    if (said_.size() > kMostLog) said_.erase(0, said_.size() - kMostLog);
  }
  heard_.expires_at(net::steady_timer::time_point::min());  // also for who has not asked yet
}

net::awaitable<void> Relay::await_end() {
  error_code error;
  co_await client_.async_wait(net::posix::stream_descriptor::wait_read, net::redirect_error(net::use_awaitable, error));
  ::waitpid(pid_, nullptr, 0);
  // What it said last is on its way: until the end of it, which is near.
  co_await heard_.async_wait(net::redirect_error(net::use_awaitable, error));
  if (!mounted_) tell_failure();
  ::_exit(mounted_ ? 0 : 1);
}

void Relay::tell_failure() {
  Error error{Code::unavailable, "the bucket cannot be mounted"};
  auto says = [&](const char* words) { return said_.find(words) != std::string::npos; };
  if (says("invalid credentials")) error = {Code::denied, "the store does not take the credentials of the bucket"};
  if (says("not found(host")) error = {Code::not_found, "the store has no such bucket"};
  if (says("unable to connect")) error = {Code::unavailable, "the store of the bucket cannot be reached"};
  // "TIME [CRT] s3fs.cpp:place(12): what": the last line that says what is wrong.
  std::string last;
  for (size_t from = 0; from < said_.size();) {
    const size_t end = std::min(said_.find('\n', from), said_.size());
    const std::string line = said_.substr(from, end - from);
    from = end + 1;
    if (line.starts_with("isola: ")) error = {Code::invalid, line.substr(7)};
    const bool wrong = line.find("[ERR]") != line.npos || line.find("[CRT]") != line.npos;
    const size_t what = line.find("): ");
    if (wrong && what != line.npos && line.find("Exiting") == line.npos && line.find("debug level") == line.npos)
      last = line.substr(what + 3);
    if (line.starts_with("s3fs: ")) last = line.substr(6);
  }
  if (error.code == Code::unavailable && !last.empty()) error.message += ": " + last.substr(0, 400);
  for (char& c : error.message)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  (void)kernel::send_message(control_.get(), kernel::Helper::failed_word(error));
}

// The folder was listed, or could not be. A client that is about to die says why first.
void Relay::probed(int error) {
  if (error != 0) {
    (void)::kill(pid_, SIGTERM);
    auto limit = std::make_shared<net::steady_timer>(context_, std::chrono::seconds(2));
    limit->async_wait([this, limit](error_code) {
      tell_failure();
      ::_exit(1);
    });
    return;
  }
  const int fds[] = {mount_.get()};
  mounted_ = kernel::send_message(control_.get(), std::string_view(&launcher::kBucketMounted, 1), fds).has_value();
  if (!mounted_) ::_exit(1);
  control_.reset();
  mount_.reset();  // from now on it lives as long as somebody else has it
}

int probe(int mount) {
  int folder = ::openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = folder < 0 ? nullptr : ::fdopendir(folder);
  if (!dir) return errno;
  errno = 0;
  while (::readdir(dir)) {
  }
  int error = errno;
  ::closedir(dir);
  return error;
}

int Relay::run() {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return 1;
  ::prctl(PR_SET_NAME, "isola-bucket", 0, 0, 0);
  net::co_spawn(context_, accept(), net::detached);
  net::co_spawn(context_, listen_to_client(), net::detached);
  net::co_spawn(context_, await_end(), net::detached);
  // It waits in the kernel, for the client, which waits for this process.
  std::thread([this, mount = mount_.get()] {
    int error = probe(mount);
    net::post(context_, [this, error] { probed(error); });
  }).detach();
  context_.run();
  return 0;
}

}  // namespace

// Started by the launcher, and of no use to anybody else.
void add_bucket_relay(CLI::App& app, int& code) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* command = app.add_subcommand("bucket-relay", "Forwards the connections of a bucket's client")->group("");
  command->add_option("words", *words)->expected(4);
  command->callback([words, &code] {
    Relay relay((*words)[0], (*words)[1], static_cast<pid_t>(std::atoi((*words)[2].c_str())), (*words)[3] == "inside");
    code = relay.run();
  });
}

}  // namespace isola::cli
