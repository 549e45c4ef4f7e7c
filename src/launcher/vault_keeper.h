// The launcher's hand on the vault: it holds the keys, and lets processes of its own do what needs them, so that no
// value ever stands in the launcher's memory.
//
//   VaultKeeper vault(loop, {.path = data + "/vault/key", .user = …});
//   vault.open();                                      // reads the keys, or makes them at the first start
//   vault.open_bindings(text, done);                   // sealed to the vault's key → sealed to the gate's
//
// A helper gets the keys over a pipe (memory of secrets is not inherited), and only the one that derives a key from a
// passphrase gives one back, over a pipe as well.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "kernel/helper.h"
#include "launcher/event_loop.h"
#include "launcher/protocol.h"
#include "launcher/vault_fetch.h"
#include "vault/key_file.h"
#include "vault/signing_keys.h"

namespace isola::launcher {

// What is to be opened for the gate.
struct OpenRequest {
  std::string sandbox;
  std::string bindings;   // sealed to the vault's key
  std::string before;     // what the gate has now
  bool only_due = false;  // whatever else it has stays as it is
};

class VaultKeeper {
 public:
  struct Options {
    std::string path;              // of the key file
    std::function<uid_t()> user;   // on whose behalf sources of this machine are read: the server's
    std::string authorities = {};  // a PEM file: certificates that sources are believed with beside the machine's
  };
  using Done = std::function<void(Result<std::string>)>;

  VaultKeeper(EventLoop& loop, Options options) : loop_(loop), options_(std::move(options)) {}
  ~VaultKeeper();
  VaultKeeper(const VaultKeeper&) = delete;
  VaultKeeper& operator=(const VaultKeeper&) = delete;

  // What is wrong with the key file is told to whoever asks for anything of the vault; sandboxes live without one.
  void open();
  VaultState state() const;
  vault::Secret gate_key() const;  // empty while it is locked

  // denied: not the passphrase.
  void unlock(std::string_view passphrase, Done done);
  void protect(std::string_view passphrase, Done done);
  Result<void> begin_rotation();
  Result<void> end_rotation();

  // {str bindings, sealed to the gate's key; str JSON of those that are missing, and why; str JSON of those that the
  // gate searches for and does not send, and why}. Never fails for one binding: one that is missing goes along without
  // a value, so that the gate refuses what it is for.
  // What was made before and still serves is used again (vault/minting.h).
  void open_bindings(const OpenRequest& request, Done done);
  // From whichever key the vault has to the current one: values alone (a codec's list), or those in bindings.
  void reseal_values(const std::vector<std::string>& sealed, Done done);
  void reseal_bindings(const std::string& bindings, Done done);

  // The keys that tokens of sandboxes are signed with: their public halves (a JSON Web Key Set). The first is made when
  // somebody asks; `rotate` makes another, which signs when everybody can know it, `replace` one that signs at once.
  void signing_keys(SigningWish wish, Done done);
  void reseal_signing(Done done);
  // The value itself, for commands that cannot go without it (docs/vault.md). denied: unless root allowed it, by a file
  // `allow-exposed` beside the keys. Without that file whoever has taken the server over cannot read values back.
  void open_value(const std::string& sealed, Done done);
  // The value goes into a pipe whose other end a process of ours has that needs it (bucket.h): never through here.
  void open_into(const std::string& sealed, const Fd& into, Done done);

  std::function<void()> on_unlock;
  std::function<void()> on_helper_end;  // there is a child to be waited for

 private:
  // With the keys, in a process of its own; where there are many of these already, when its turn comes. A new gate has
  // the bindings of every sandbox opened at once.
  using Work = std::function<Result<std::string>(const vault::Keys& keys)>;
  struct Wanted {
    uint64_t capabilities = 0;
    Work work;
    Done done;
    int keep = -1;  // a descriptor that `work` holds
  };
  void run(Wanted wanted);
  void begin(Wanted wanted);
  void begin_next();
  void watch(kernel::Helper helper, std::chrono::seconds time, Done done);
  // In a process of its own: `then` gets what follows from the passphrase.
  void derive(std::string_view passphrase, const vault::Lock& lock, std::function<Result<void>(vault::Secret)> then,
              Done done);
  Result<void> ready() const;
  FetchAs fetch_as() const;
  void make_signing_key(bool at_once, Done done);

  EventLoop& loop_;
  Options options_;
  std::optional<vault::KeyFile> file_;
  std::string trouble_ = "the vault is not open";
  std::optional<vault::SigningKeys> signing_;
  std::string signing_trouble_ = "the vault is not open";
  bool signing_changes_ = false;           // one change at a time
  std::vector<Done> waiting_for_signing_;  // for the first of them
  struct Helping {
    kernel::Helper helper;
    Done done;
    EventLoop::TimerId timer;
  };
  std::map<int, Helping> helpers_;
  std::deque<Wanted> waiting_;  // for one of them to end
};

}  // namespace isola::launcher
