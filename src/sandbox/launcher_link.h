// The launcher as the service sees it: many requests under way at once, from any worker, each over a connection of that
// worker's, which is made anew when it breaks.
//
//   auto launcher = LauncherLink::make(home, connect);
//   launcher->start({.ended = …});                                   // before the first request
//   ISOLA_CO_TRY(auto launched, co_await launcher->launch(request));
//
// A request that was under way when the connection broke fails with Code::unavailable: whether it happened is then
// found out by looking (list).
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/task.h"
#include "gate/event.h"
#include "launcher/protocol.h"
#include "vault/seal.h"

namespace isola::sandbox {

// What is done while others work on a request that is on its way. Whoever asks keeps it until the answer is there.
using Meanwhile = std::function<void()>;

struct Launched {
  launcher::LaunchReply reply;
  boundary::Link link;
};

class LauncherLink {
 public:
  // A connected socket. `start`: the launcher is started if need be, which may take a while; not called on a worker
  // then, but for the first time.
  using Connect = std::function<Result<Fd>(bool start)>;

  // Called on any worker.
  struct Listener {
    std::function<void(const launcher::Ended&)> ended;
    // What the gate told, and its number: again after a break, unless it was acknowledged.
    std::function<void(const gate::Event&, uint64_t number)> gate_event;
    std::function<uint64_t()> gate_known = {};  // the number of the last one that is in the ledger
    std::function<void()> connected;            // again after a break: whoever owns sandboxes says so anew
  };

  static std::shared_ptr<LauncherLink> make(boost::asio::io_context& home, Connect connect);
  ~LauncherLink();

  // Connects. The listener is handed over before there is anything to hear; a second call changes nothing.
  void start(Listener listener);

  Task<Result<Launched>> launch(launcher::LaunchRequest request);
  Task<Result<boundary::Link>> link(std::string id);
  // Makes this connection the one that hears of the sandbox's end.
  Task<Result<void>> own(std::string id);
  Task<Result<launcher::Ended>> kill(std::string id);
  Task<Result<void>> freeze(std::string id);
  Task<Result<void>> thaw(std::string id);
  Task<Result<launcher::StatsReply>> stats(std::string id);
  Task<Result<uint64_t>> page_cache(std::string id);  // 0 of a launcher of another version
  Task<Result<std::vector<launcher::SandboxSummary>>> list();
  Task<Result<launcher::InfoReply>> info();
  Task<Result<void>> park(std::string digest, uint32_t count);

  // Images (docs/images.md). A checkpoint with memory wants a quiesced link.
  Task<Result<launcher::CheckpointReply>> checkpoint(launcher::CheckpointRequest request);
  Task<Result<std::vector<launcher::ImageSummary>>> images();
  Task<Result<void>> drop_image(std::string image);
  // `pack`, or unpack.
  Task<Result<launcher::PackReply>> pack_image(std::string image, bool pack);
  // That it is there, with all that it needs; not_found, corrupt. `thorough`: what was written then is what there is
  // now, whoever could use it. `wanted`: this launch of it would not be refused for what it is.
  Task<Result<void>> verify_image(std::string image, bool thorough = false,
                                  std::optional<launcher::LaunchRequest> wanted = std::nullopt);

  // Volumes (docs/storage.md).
  Task<Result<void>> make_volume(std::string id, uint64_t bytes);
  Task<Result<void>> resize_volume(std::string id, uint64_t bytes);
  Task<Result<void>> sync_volume(std::string id);
  Task<Result<void>> drop_volume(std::string id);
  Task<Result<launcher::VolumeSummary>> volume(std::string id);
  Task<Result<std::vector<launcher::VolumeSummary>>> volumes();

  // Returns when the gate has it, with which of its bindings could not be opened and why (JSON; empty: none).
  // `meanwhile` runs when the request is on its way, while others work on it.
  Task<Result<std::string>> set_policy(launcher::PolicyRequest request, const Meanwhile* meanwhile = nullptr);
  Task<Result<void>> revoke(launcher::RevokeRequest request);
  Task<Result<std::string>> certificate(std::string id);  // PEM
  // All that the gate told up to this number is in the ledger.
  void acknowledge(uint64_t number);
  // From now on what the gate tells is this one's to write down; a second time: from behind what was acknowledged.
  void keep_records();

  // The vault (docs/vault.md). Nothing but cipher text, but for open_value.
  Task<Result<launcher::VaultState>> vault_state();
  Task<Result<std::vector<std::string>>> reseal(std::vector<std::string> sealed);
  Task<Result<vault::Secret>> open_value(std::string sealed);
  Task<Result<std::string>> signing_keys();               // a JSON Web Key Set
  Task<Result<std::string>> gate_report(std::string id);  // JSON
  // A socket whose other end the gate has (scan_link.h); unavailable while it is being restarted.
  Task<Result<Fd>> scan_channel();

  bool connected() const;
  void stop();

 private:
  struct Inner;
  struct Answer;
  LauncherLink() = default;
  Task<bool> is_of_this_version();
  Task<Result<Answer>> ask(launcher::Op op, std::string arguments, const Meanwhile* meanwhile = nullptr);
  Task<Result<void>> ask_with_id(launcher::Op op, std::string id);
  Task<Result<void>> ask_with_size(launcher::Op op, std::string id, uint64_t bytes);
  template <typename T>
  Task<Result<std::vector<T>>> pages(launcher::Op op);
  std::shared_ptr<Inner> inner_;
};

}  // namespace isola::sandbox
