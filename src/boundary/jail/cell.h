// A living jail, seen from the launcher; or one around an engine, whose relay keeps the link as the guest would.
#pragma once

#include "boundary/boundary.h"

namespace isola::boundary::jail {

class JailCell : public Cell {
 public:
  JailCell(kernel::ProcessName process, Fd pidfd, bool own_child, BoundaryKind kind = BoundaryKind::jail)
      : kind_(kind), process_(process), pidfd_(kept(std::move(pidfd))), own_child_(own_child) {}

  CellName name() const override { return {.kind = kind_, .process = process_, .handle = handle_}; }
  int exit_fd() const override { return pidfd_.get(); }
  Result<int> prepare_link() override;
  Result<Link> take_link() override;
  Result<const IslandSockets*> sockets() override;
  Result<void> kill() override;
  Result<bool> quiesced() override;
  std::optional<int> exit_status() override;
  int parent_fd() const override { return parent_.get(); }
  // The helper that restored it.
  void set_parent(Fd helper) { parent_ = kept(std::move(helper)); }

  void set_handle(std::string handle) { handle_ = std::move(handle); }
  // A parked cell waits long for whoever takes it.
  void set_first_link(Link link) { first_ = Link{kept(std::move(link.to_guest)), kept(std::move(link.from_guest))}; }
  void set_network(IslandSockets sockets) {
    for (Fd* socket :
         {&sockets.tcp4, &sockets.tcp6, &sockets.dns_udp4, &sockets.dns_udp6, &sockets.dns_tcp4, &sockets.dns_tcp6})
      *socket = kept(std::move(*socket));
    sockets_ = std::move(sockets);
  }
  // An adopted cell opens them when they are asked for: whoever had them may still be on its way out.
  void set_network(const IslandNetwork* network) { network_ = network; }

 private:
  Result<Fd> open_guest_fd(int number, int flags) const;

  BoundaryKind kind_;
  kernel::ProcessName process_;
  std::string handle_;
  Fd pidfd_;
  bool own_child_;  // ours to wait for; an adopted one is init's
  Fd parent_;
  std::optional<Link> first_;
  Fd current_;             // our copy of the out-pipe's read end: hangs up when the guest has made new pipes
  IslandSockets sockets_;  // held for the gate
  const IslandNetwork* network_ = nullptr;
};

// The guest's numbers for its own ends, and the signal that makes it open new pipes (guest/link.h).
inline constexpr int kGuestInput = 3, kGuestOutput = 4;

}  // namespace isola::boundary::jail
