// The launcher as a caller sees it: one blocking connection with typed calls.
//
//   ISOLA_TRY(Client launcher, Client::connect_or_start(data_dir));
//   ISOLA_TRY(Sandbox box, launcher.launch({.digest = base.digest}));
//   …speak to the guest over box.link…
//   ISOLA_TRY(Ended end, launcher.kill(box.reply.id));
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "gate/event.h"
#include "kernel/process.h"
#include "launcher/protocol.h"

namespace isola::launcher {

struct Sandbox {
  LaunchReply reply;
  boundary::Link link;
};

struct StartOptions {
  std::string data_dir = "/var/lib/isola";
  std::string cache_dir;            // empty: as the environment says, or the machine's
  std::string program;              // the isola binary; empty: this one
  std::string user;                 // who may use it besides root (LauncherOptions::user)
  std::chrono::seconds linger{60};  // an auto-started launcher leaves when it was idle for so long
};

// A connected socket, for those who speak the protocol themselves. unavailable: no launcher runs there.
Result<Fd> connect_socket(const std::string& data_dir);

class Client {
 public:
  static Result<Client> connect(const std::string& data_dir);
  // Starts a launcher in the background if none answers.
  static Result<Client> connect_or_start(const StartOptions& options);

  // `trees`: detached mounts for request.shown_targets.
  Result<Sandbox> launch(const LaunchRequest& request, std::vector<int> trees = {});
  Result<boundary::Link> link(const std::string& id);
  // This connection hears of its end from now on (next_event), as the one that launched it would.
  Result<void> own(const std::string& id);
  // Returns when nothing of the sandbox is left.
  Result<Ended> kill(const std::string& id);
  Result<void> freeze(const std::string& id);
  Result<void> thaw(const std::string& id);
  Result<StatsReply> stats(const std::string& id);
  Result<std::vector<SandboxSummary>> list();
  Result<InfoReply> info();
  // Makes an image of a sandbox whose link was quiesced (protocol.h). Waits for as long as it takes.
  Result<CheckpointReply> checkpoint(const CheckpointRequest& request);
  Result<std::vector<ImageSummary>> images();
  Result<void> drop_image(const std::string& image);
  Result<void> verify_image(const std::string& image, bool thorough);
  Result<void> make_volume(const std::string& id, uint64_t bytes);
  Result<void> resize_volume(const std::string& id, uint64_t bytes);
  Result<void> drop_volume(const std::string& id);
  Result<std::vector<VolumeSummary>> volumes();
  // Keeps `count` sandboxes parked: of a template (by digest), or of an image with memory.
  Result<void> park(const std::string& name, uint32_t count, BoundaryKind kind = BoundaryKind::jail);
  Result<void> set_policy(const PolicyRequest& request);
  // What a sandbox did on the network, as JSON (gate/recorder.h).
  Result<std::string> gate_report(const std::string& id);
  Result<VaultState> vault_state();
  // Argon2id takes its time.
  Result<void> unlock_vault(std::string_view passphrase);
  Result<void> protect_vault(std::string_view passphrase);  // empty: from now on without
  Result<void> rotate_vault(RotatePhase phase);
  Result<std::string> signing_keys(SigningWish wish);  // a JSON Web Key Set
  Result<std::vector<std::string>> reseal(const std::vector<std::string>& sealed);
  // Makes this connection a stream of the gate's events, and nothing else from then on.
  Result<void> watch_gate();
  Result<gate::Event> next_gate_event();  // waits
  // That user may use this launcher from now on, whatever it was started with.
  Result<void> admit(uint32_t user);
  // Returns when the launcher is gone.
  Result<void> shutdown(bool end_all);

  // Readable when an event may have come: then next_event(), which does not wait.
  int fd() const { return socket_.get(); }
  Result<std::optional<Ended>> next_event();

 private:
  explicit Client(Fd socket) : socket_(std::move(socket)) {}
  Result<kernel::Message> call(Op op, const std::string& arguments, const std::vector<int>& fds = {});
  Result<void> call_with_id(Op op, const std::string& id);
  Result<void> call_with_passphrase(Op op, std::string_view passphrase);
  Result<void> call_with_size(Op op, const std::string& id, uint64_t bytes);
  template <typename T>
  Result<std::vector<T>> pages(Op op);

  Fd socket_;
  uint32_t last_tag_ = 0;
  std::deque<Ended> events_;
};

}  // namespace isola::launcher
