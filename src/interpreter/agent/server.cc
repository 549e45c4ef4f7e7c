#include "interpreter/agent/server.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "interpreter/agent/message.h"
#include "interpreter/bounds.h"

namespace isola::interpreter {

namespace {

constexpr size_t kMaxRequest = 80 << 20;  // a cell of 64 MiB, escaped a little
constexpr auto kHold = std::chrono::milliseconds(20);
constexpr size_t kMaxContexts = 64, kMaxClients = 512;

std::map<std::string, std::string> variables(const Json& object, const char* name) {
  std::map<std::string, std::string> out;
  if (auto found = object.find(name); found != object.end() && found->is_object())
    for (const auto& [key, value] : found->items())
      if (value.is_string() && !key.empty() && key.find('=') == std::string::npos &&
          key.find('\0') == std::string::npos)
        out[key] = value.get<std::string>().substr(0, value.get_ref<const std::string&>().find('\0'));
  return out;
}

}  // namespace

Server::Server(Fd listener, Options options) : listener_(std::move(listener)), options_(std::move(options)) {
  // Before libzmq has threads, so that they do not take the signal.
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  signals_ = Fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  zmq_ = ::zmq_ctx_new();
  ::zmq_ctx_set(zmq_, ZMQ_MAX_SOCKETS, 4096);
}

Server::~Server() {
  contexts_.clear();
  ::zmq_ctx_term(zmq_);
}

Result<void> Server::run() {
  for (;;) {
    std::vector<zmq_pollitem_t> items;
    auto add_fd = [&](int fd, short events) { items.push_back({nullptr, fd, events, 0}); };
    add_fd(listener_.get(), clients_.size() < kMaxClients ? ZMQ_POLLIN : 0);
    add_fd(signals_.get(), ZMQ_POLLIN);
    std::vector<ClientId> ids;
    std::optional<Clock::time_point> next;
    for (auto& [id, client] : clients_) {
      ids.push_back(id);
      bool writes = !client.out.empty() && !client.held;
      add_fd(client.fd.get(), static_cast<short>(ZMQ_POLLIN | (writes ? ZMQ_POLLOUT : 0)));
      if (client.held && (!next || *client.held < *next)) next = client.held;
    }
    size_t kernels_from = items.size();
    std::vector<std::pair<std::string, const Kernel*>> kernels;
    for (auto& [id, context] : contexts_) {
      if (auto at = context->next(); at && (!next || *at < *next)) next = at;
      Kernel* kernel = context->kernel();
      if (!kernel) continue;
      kernels.emplace_back(id, kernel);
      for (auto channel : Kernel::kChannels) items.push_back({kernel->socket(channel), 0, ZMQ_POLLIN, 0});
      // A stand-in for one that was closed: every kernel has as many items.
      add_fd(kernel->words_fd() >= 0 ? kernel->words_fd() : signals_.get(), ZMQ_POLLIN);
    }
    long wait = -1;
    if (next) wait = std::max<long>(0, std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count());
    if (::zmq_poll(items.data(), static_cast<int>(items.size()), wait) < 0 && errno != EINTR)
      return sys_error("cannot wait for kernels and callers");

    for (size_t i = 0; i < kernels.size(); ++i) {
      const auto& [id, kernel] = kernels[i];
      auto found = contexts_.find(id);
      if (found == contexts_.end() || found->second->kernel() != kernel) continue;
      constexpr size_t kSockets = std::size(Kernel::kChannels);
      const zmq_pollitem_t* item = &items[kernels_from + (kSockets + 1) * i];
      if (item[kSockets].revents) found->second->words();
      if (std::any_of(item, item + kSockets, [](const zmq_pollitem_t& one) { return one.revents != 0; }))
        found->second->readable();
    }
    if (items[1].revents) reap();
    auto now = Clock::now();
    for (auto& [id, context] : contexts_) context->tick(now);
    if (items[0].revents) accept();
    for (size_t i = 0; i < ids.size(); ++i)
      if (items[2 + i].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) read_from(ids[i]);
    for (const auto& name : std::exchange(doomed_, {})) {
      contexts_.erase(name);
      std::erase(order_, name);
    }
    // Also what was said just now: most of it leaves without another turn.
    for (auto it = clients_.begin(); it != clients_.end();) {
      ClientId id = it->first;
      ++it;
      flush(id);
    }
  }
}

void Server::reap() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) > 0) {
  }
  for (auto& entry : contexts_) entry.second->reap();
}

void Server::accept() {
  for (;;) {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    clients_[++last_client_].fd = std::move(fd);
    read_from(last_client_);  // as a rule its request is there already
  }
}

void Server::read_from(ClientId id) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  char buffer[64 << 10];
  for (;;) {
    ssize_t n = ::recv(client.fd.get(), buffer, sizeof buffer, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      // It is gone, or says no more. Its cell goes on; nobody listens.
      clients_.erase(found);
      return;
    }
    size_t from = client.in.size();
    client.in.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = client.in.find('\n', from)) != std::string::npos; from = 0) {
      std::string text = client.in.substr(0, end);
      client.in.erase(0, end + 1);
      line(id, text);
      if (!clients_.contains(id)) return;
    }
    if (client.in.size() > kMaxRequest) {
      client.in.clear();
      return refuse(id, Error{Code::invalid, "the request is too large"});
    }
  }
}

void Server::flush(ClientId id) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if (client.held && Clock::now() < *client.held) return;
  client.held.reset();
  while (client.sent < client.out.size()) {
    ssize_t n = ::send(client.fd.get(), client.out.data() + client.sent, client.out.size() - client.sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      clients_.erase(found);
      return;
    }
    client.sent += static_cast<size_t>(n);
  }
  // What is left is moved seldom: a socket takes little at once, and there may be a hundred megabytes.
  if (client.sent == client.out.size() || client.sent > client.out.size() / 2) {
    client.out.erase(0, client.sent);
    client.sent = 0;
  }
  if (client.out.empty() && client.closing) clients_.erase(found);
}

void Server::say(ClientId id, const Json& line, bool last) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  // That a cell has begun is said together with the first thing that it says, if that comes soon.
  bool first = client.out.empty() && !last && text_of(line, "type") == "start";
  client.held = first ? std::optional(Clock::now() + kHold) : std::nullopt;
  client.out += dump(line) + "\n";
  if (last) client.closing = true;
}

void Server::refuse(ClientId id, const Error& error) {
  say(id, {{"type", "failure"}, {"code", to_string(error.code)}, {"message", error.message}}, true);
}

void Server::line(ClientId id, const std::string& text) {
  Client& client = clients_.at(id);
  if (client.closing) return;
  auto parsed = parse_bounded(text);
  if (!parsed) return refuse(id, Error{Code::invalid, "the request is not an object of JSON"});
  Json request = std::move(*parsed);
  std::string op = text_of(request, "op");
  if (client.asked) {
    if (op == "interrupt" && client.cell)
      if (auto found = contexts_.find(client.context); found != contexts_.end()) found->second->cancel(client.cell);
    return;
  }
  client.asked = true;
  if (op == "execute") return execute(id, request);
  if (op == "create") return create(id, request);
  if (op == "warm") return warm(id, request);
  if (op == "list") return list(id);
  if (op == "languages") return languages(id);
  if (op == "restart" || op == "interrupt" || op == "delete") return on_context(id, op, request);
  refuse(id, Error{Code::invalid, "there is no such request: " + op.substr(0, 64)});
}

void Server::execute(ClientId id, const Json& request) {
  std::string named = text_of(request, "context");
  auto context = named.empty() ? usual(text_of(request, "language", "python")) : find(named);
  if (!context) return refuse(id, context.error());
  auto cell = std::make_shared<Cell>();
  cell->code = text_of(request, "code");
  cell->env = variables(request, "env");
  cell->lasting = variables(request, "sandbox_env");
  if (auto found = request.find("timeout_ms"); found != request.end() && found->is_number_unsigned())
    cell->timeout = std::chrono::milliseconds(std::min<uint64_t>(found->get<uint64_t>(), 30ull * 24 * 3600 * 1000));
  size_t most = kUsualOutput;
  if (auto found = request.find("max_output"); found != request.end() && found->is_number_unsigned())
    most = std::min<size_t>(found->get<size_t>(), kMostOutput);
  cell->output = std::make_unique<Output>([this, id](const Json& event) { say(id, event, false); }, most);
  cell->done = [this, id](const Json& end) {
    if (auto found = clients_.find(id); found != clients_.end()) found->second.cell.reset();
    say(id, end, true);
  };
  Client& client = clients_.at(id);
  client.cell = cell;
  client.context = (*context)->info().id;
  (*context)->run(std::move(cell));
}

void Server::create(ClientId id, const Json& request) {
  std::string name = "x" + random_hex(6), cwd = text_of(request, "cwd", options_.home);
  if (cwd.find('\0') != std::string::npos) return refuse(id, Error{Code::invalid, "cwd: holds a NUL byte"});
  auto made = make(name, text_of(request, "language", "python"), cwd.empty() ? options_.home : cwd);
  if (!made) return refuse(id, made.error());
  (*made)->set_lasting(variables(request, "sandbox_env"));
  (*made)->when_ready([this, id, name](const Result<void>& ready) {
    auto context = find(name);
    if (!ready || !context) {
      doomed_.push_back(name);  // not from here: it is the context that speaks
      return refuse(id, ready ? Error{Code::not_found, "the context is gone"} : ready.error());
    }
    say(id, {{"type", "context"}, {"context", (*context)->describe()}}, true);
  });
}

// The default context of a language is started before anybody has a cell for it.
void Server::warm(ClientId id, const Json& request) {
  auto context = usual(text_of(request, "language", "python"));
  if (!context) return refuse(id, context.error());
  std::string name = (*context)->info().id;
  (*context)->set_lasting(variables(request, "sandbox_env"));
  (*context)->when_ready([this, id, name](const Result<void>& ready) {
    auto there = find(name);
    if (!ready) return refuse(id, ready.error());
    if (there) say(id, {{"type", "context"}, {"context", (*there)->describe()}}, true);
  });
}

void Server::list(ClientId id) {
  Json all = Json::array();
  for (const auto& name : order_) all.push_back(contexts_.at(name)->describe());
  say(id, {{"type", "contexts"}, {"contexts", all}}, true);
}

void Server::languages(ClientId id) {
  Json all = Json::array();
  Specs specs = Specs::read(Specs::usual_folders(options_.home));
  for (const auto& spec : specs.all()) {
    Json one = {{"language", spec.language}, {"kernel", spec.name}, {"display_name", spec.display_name}};
    if (!spec.broken.empty()) one["broken"] = spec.broken;
    all.push_back(one);
  }
  say(id, {{"type", "languages"}, {"languages", all}}, true);
}

void Server::on_context(ClientId id, const std::string& op, const Json& request) {
  std::string name = text_of(request, "context");
  if (!contexts_.contains(name)) {
    // A default one that nobody asked for yet has nothing to end, and is not made for that.
    auto spec = usual_spec(name);
    if (!spec) return refuse(id, spec.error());
    if (op == "delete") return say(id, {{"type", "done"}}, true);
    Context none(zmq_, options_.folder, Context::Info{name, options_.home, *spec});
    return say(id, {{"type", "context"}, {"context", none.describe()}}, true);
  }
  auto context = find(name);
  if (!context) return refuse(id, context.error());
  if (op == "delete") {
    auto gone = std::move(contexts_.at(name));
    contexts_.erase(name);
    std::erase(order_, name);
    gone.reset();
    return say(id, {{"type", "done"}}, true);
  }
  if (op == "interrupt") {
    (*context)->interrupt();
    return say(id, {{"type", "context"}, {"context", (*context)->describe()}}, true);
  }
  (*context)->restart();
  (*context)->when_ready([this, id, name](const Result<void>& ready) {
    auto context = find(name);
    if (!ready) return refuse(id, ready.error());
    if (context) say(id, {{"type", "context"}, {"context", (*context)->describe()}}, true);
  });
}

Result<Context*> Server::make(const std::string& id, const std::string& language, const std::string& cwd) {
  Specs specs = Specs::read(Specs::usual_folders(options_.home));
  ISOLA_TRY(const KernelSpec* spec, specs.find(language));
  std::string name = id.empty() ? spec->language : id;
  if (auto there = contexts_.find(name); there != contexts_.end()) return there->second.get();
  if (contexts_.size() >= kMaxContexts)
    return fail(Code::exhausted, "there are " + std::to_string(kMaxContexts) + " contexts already: delete one first");
  contexts_[name] = std::make_unique<Context>(zmq_, options_.folder, Context::Info{name, cwd, *spec});
  order_.push_back(name);
  return contexts_.at(name).get();
}

Result<Context*> Server::usual(const std::string& language) {
  if (auto there = contexts_.find(language); there != contexts_.end()) return there->second.get();
  return make("", language, options_.home);
}

// The default context of a language has the language's name.
Result<KernelSpec> Server::usual_spec(const std::string& id) const {
  Specs specs = Specs::read(Specs::usual_folders(options_.home));
  for (const auto& spec : specs.all())
    if (spec.language == id) return spec;
  return fail(Code::not_found, "there is no context '" + id.substr(0, 64) + "'");
}

Result<Context*> Server::find(const std::string& id) {
  if (auto found = contexts_.find(id); found != contexts_.end()) return found->second.get();
  ISOLA_CHECK(usual_spec(id));
  return make("", id, options_.home);
}

}  // namespace isola::interpreter
