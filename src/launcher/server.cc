#include "launcher/server.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/ids.h"
#include "base/log.h"
#include "kernel/process.h"

namespace isola::launcher {

namespace {

// Replies that a client does not read; beyond either it is dropped.
constexpr size_t kMaxQueued = 4096;
constexpr size_t kMaxQueuedBytes = 4 << 20;
constexpr size_t kMaxConnections = 4096;
constexpr auto kAcceptAgain = std::chrono::milliseconds(100);
constexpr size_t kListPage = 256;

template <typename T>
std::string encoded(const T& value) {
  Writer out;
  encode(out, value);
  return out.take();
}

}  // namespace

Result<void> Server::listen(const std::string& path, uid_t user) {
  path_ = path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(Code::invalid, "the data directory's path is too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  socket_ = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_) return sys_error("cannot create the launcher's socket");
  ::unlink(path.c_str());  // a dead launcher's; a living one holds the lock
  if (::bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0)
    return sys_error("cannot bind " + path);
  ISOLA_CHECK(admit(user));
  if (::listen(socket_.get(), 1024) < 0) return sys_error("cannot listen on " + path);
  return hear();
}

Result<void> Server::admit(uid_t user) {
  // Who may connect is decided by SO_PEERCRED; the mode keeps everybody else from even trying.
  if (::chmod(path_.c_str(), 0600) < 0 || ::chown(path_.c_str(), user, 0) < 0)
    return sys_error("cannot protect " + path_);
  // Everything else in the folder is closed to others by its own mode.
  std::string folder = path_.substr(0, path_.rfind('/'));
  // A server's user walks through it, and comes back: one that is away has its ledger in there all the same.
  const bool shared = user != 0 || ::access((folder + "/server").c_str(), F_OK) == 0;
  if (::chmod(folder.c_str(), shared ? 0711 : 0700) < 0) return sys_error("cannot set the mode of " + folder);
  const bool other = std::exchange(user_, user) != user;
  // Whoever was admitted before is no longer.
  std::vector<OwnerId> others;
  for (const auto& [id, connection] : connections_)
    if (connection.user != 0 && connection.user != user) others.push_back(id);
  for (OwnerId id : others) drop(id);
  if (other && gate_) gate_->open_all_again();  // what could not be read on nobody's behalf
  return {};
}

Result<void> Server::hear() {
  return loop_.watch(socket_.get(), EPOLLIN, [this](uint32_t) { accept(); });
}

void Server::accept() {
  Fd socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
    // Whoever knocks would wake us for ever without getting in: they wait until there may be room.
    log::warn("launcher", "cannot take a connection: {}", std::strerror(errno));
    loop_.unwatch(socket_.get());
    loop_.after(kAcceptAgain, [this] { (void)hear(); });
    return;
  }
  if (!socket) return;
  if (connections_.size() >= kMaxConnections) {
    log::warn("launcher", "refused a connection: there are {} already", connections_.size());
    return;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || (peer.uid != 0 && peer.uid != user_)) {
    log::warn("launcher", "refused a connection of user {} (process {})", peer.uid, peer.pid);
    return;
  }
  OwnerId id = ++last_;
  int fd = socket.get();
  connections_[id].socket = std::move(socket);
  connections_[id].user = peer.uid;
  connections_[id].process = peer.pid;
  if (!loop_.watch(fd, EPOLLIN, [this, id](uint32_t events) { receive(id, events); })) connections_.erase(id);
  if (on_change) on_change();  // no longer idle
}

void Server::receive(OwnerId id, uint32_t events) {
  if (!connections_.contains(id)) return;
  if (events & EPOLLOUT) flush(id);
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  auto it = connections_.find(id);
  if (it == connections_.end()) return;  // whoever it was does not take our answers any more
  auto message = kernel::receive_message(it->second.socket.get(), kMaxMessage);
  if (!message && message.error().sys_errno == EAGAIN) return;
  if (!message || message->bytes.empty()) return drop(id);
  handle(id, std::move(*message));
}

void Server::handle(OwnerId id, kernel::Message message) {
  Reader in(message.bytes);
  uint32_t tag = in.u32();
  uint8_t op = in.u8();
  if (!in.ok() || tag == 0) {
    log::warn("launcher", "dropped a connection that sent nonsense");
    return drop(id);
  }
  if (op > static_cast<uint8_t>(kLastOp))  // of a server that is newer
    return reply(id, tag, fail(Code::unsupported, "this launcher is of another version and knows no such request"));
  dispatch(id, tag, static_cast<Op>(op), in, std::move(message.fds));
  vault::wipe(message.bytes);  // it may have been a passphrase
}

void Server::dispatch(OwnerId id, uint32_t tag, Op op, Reader in, std::vector<Fd> fds) {
  auto bad = [&] { reply(id, tag, fail(Code::invalid, "unreadable request")); };
  auto answer = [&](const Result<void>& result) {
    reply(id, tag, result ? Result<std::string>("") : Result<std::string>(std::unexpected(result.error())));
  };
  if (op == Op::info) {
    InfoReply info = info_;
    info.live = static_cast<uint32_t>(cells_.live());
    info.parked = static_cast<uint32_t>(cells_.parked());
    info.cleaning = static_cast<uint32_t>(cells_.cleaning());
    return in.done() ? reply(id, tag, encoded(info)) : bad();
  }
  // A folder that is shown is seen through the sandbox's ids, so its root reads what root owns: root alone may ask for
  // that. No other request carries descriptors.
  if (!fds.empty() && (op != Op::launch || connections_.at(id).user != 0))
    return reply(id, tag, fail(Code::denied, "only root may show folders of the host to a sandbox"));
  if (op == Op::launch) {
    LaunchRequest request;
    decode(in, request);
    if (!in.done()) return bad();
    const bool root = connections_.at(id).user == 0;
    request.roots_own = root && (request.ephemeral || !fds.empty());
    request.by_user = !root;
    if (!root && !request.image.empty())
      if (auto open = cells_.image_open_to_user(request.image); !open)
        return reply(id, tag, std::unexpected(open.error()));
    return cells_.launch(std::move(request), std::move(fds), id, [this, id, tag](auto result) {
      if (!result) return reply(id, tag, std::unexpected(result.error()));
      std::vector<Fd> link;
      link.push_back(std::move(result->second.to_guest));
      link.push_back(std::move(result->second.from_guest));
      reply(id, tag, encoded(result->first), std::move(link));
    });
  }
  if (dispatch_gate(id, tag, op, in) || dispatch_vault(id, tag, op, in)) return;
  if (op == Op::park) {
    std::string name = in.str();
    uint32_t count = in.u32();
    uint8_t kind = in.u8();
    if (!in.done() || kind > static_cast<uint8_t>(BoundaryKind::microvm)) return bad();
    if (connections_.at(id).user != 0 && is_image_id(name))
      if (auto open = cells_.image_open_to_user(name); !open) return reply(id, tag, std::unexpected(open.error()));
    return answer(cells_.park(name, count, static_cast<BoundaryKind>(kind)));
  }
  if (op == Op::list) {
    std::string after = in.str();
    return in.done() ? reply(id, tag, list_page(after, connections_.at(id).user == 0)) : bad();
  }
  if (dispatch_images(id, tag, op, in) || dispatch_volumes(id, tag, op, in)) return;
  if (op == Op::admit) {
    uint32_t user = in.u32();
    if (!in.done()) return bad();
    if (connections_.at(id).user != 0) return reply(id, tag, fail(Code::denied, "only root may admit somebody"));
    return answer(admit(user));
  }
  if (op == Op::shutdown) {
    bool end_all = in.u8() != 0;
    if (!in.done()) return bad();
    if (connections_.at(id).user != 0) return reply(id, tag, fail(Code::denied, "only root may end the launcher"));
    reply(id, tag, std::string());
    return on_shutdown(end_all);
  }
  std::string sandbox = in.str();
  if (!in.done()) return bad();
  if (!may_ask_of(id, sandbox)) return reply(id, tag, fail(Code::not_found, "there is no sandbox " + sandbox));
  switch (op) {
    case Op::link:
      return cells_.link(sandbox, id, [this, id, tag](Result<boundary::Link> result) {
        if (!result) return reply(id, tag, std::unexpected(result.error()));
        std::vector<Fd> link;
        link.push_back(std::move(result->to_guest));
        link.push_back(std::move(result->from_guest));
        reply(id, tag, std::string(), std::move(link));
      });
    case Op::kill:
      return cells_.kill(sandbox, [this, id, tag](Result<Ended> result) {
        reply(id, tag,
              result ? Result<std::string>(encoded(*result)) : Result<std::string>(std::unexpected(result.error())));
      });
    case Op::stats: {
      auto stats = cells_.stats(sandbox);
      return reply(id, tag,
                   stats ? Result<std::string>(encoded(*stats)) : Result<std::string>(std::unexpected(stats.error())));
    }
    case Op::page_cache: {
      auto bytes = cells_.page_cache(sandbox);
      if (!bytes) return reply(id, tag, std::unexpected(bytes.error()));
      Writer out;
      out.u64(*bytes);
      return reply(id, tag, out.take());
    }
    case Op::own: return answer(cells_.own(sandbox, id));
    case Op::freeze:
      return cells_.freeze(sandbox, [this, id, tag](const Result<void>& result) {
        reply(id, tag, result ? Result<std::string>("") : Result<std::string>(std::unexpected(result.error())));
      });
    case Op::thaw: return answer(cells_.thaw(sandbox));
    default: return bad();
  }
}

// What root runs for itself may show folders of the host: a server that was taken over must not reach it.
bool Server::may_ask_of(OwnerId id, const std::string& sandbox) const {
  return connections_.at(id).user == 0 || cells_.open_to_user(sandbox);
}

std::string Server::list_page(const std::string& after, bool for_root) const {
  auto page = cells_.list(after, kListPage, for_root);
  Writer out;
  out.u32(static_cast<uint32_t>(page.size()));
  for (const auto& summary : page) encode(out, summary);
  out.u8(page.size() == kListPage);
  return out.take();
}

void Server::reply(OwnerId id, uint32_t tag, const Result<std::string>& result, std::vector<Fd> fds) {
  Writer out;
  out.u32(tag);
  out.u8(result ? 0 : 1);
  if (result)
    out.bytes(*result);
  else
    encode(out, result.error());
  send(id, out.take(), std::move(fds));
}

void Server::send_event(OwnerId owner, const Ended& ended) {
  Writer out;
  out.u32(0);
  encode(out, ended);
  send(owner, out.take(), {});
}

void Server::send(OwnerId id, std::string bytes, std::vector<Fd> fds) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return;  // gone meanwhile; descriptors close here
  auto& connection = it->second;
  if (connection.queue.size() >= kMaxQueued || connection.queued_bytes + bytes.size() > kMaxQueuedBytes) {
    log::warn("launcher", "dropped a connection that does not read its replies");
    return drop(id);
  }
  connection.queued_bytes += bytes.size();
  connection.queue.push_back({std::move(bytes), std::move(fds)});
  if (connection.queue.size() == 1) flush(id);
}

void Server::flush(OwnerId id) {
  auto& connection = connections_.at(id);
  while (!connection.queue.empty()) {
    auto& next = connection.queue.front();
    std::vector<int> fds;
    for (const auto& fd : next.fds) fds.push_back(fd.get());
    auto sent = kernel::send_message(connection.socket.get(), next.bytes, fds);
    if (!sent && sent.error().sys_errno == EAGAIN) break;
    if (!sent) return drop(id);  // gone, or never to be answered again
    connection.queued_bytes -= next.bytes.size();
    connection.queue.pop_front();
  }
  if (connection.waits_for_room == !connection.queue.empty()) return;
  connection.waits_for_room = !connection.queue.empty();
  (void)loop_.watch(connection.socket.get(), connection.waits_for_room ? EPOLLIN | EPOLLOUT : EPOLLIN,
                    [this, id](uint32_t events) { receive(id, events); });
}

void Server::drop(OwnerId id) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return;
  loop_.unwatch(it->second.socket.get());
  connections_.erase(it);
  gate_watchers_.erase(id);
  if (recorder_ == id) recorder_ = 0;  // what it did not acknowledge is for the next one
  cells_.owner_gone(id);
  if (on_change) on_change();
}

}  // namespace isola::launcher
