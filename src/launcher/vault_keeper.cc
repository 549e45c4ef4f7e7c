#include "launcher/vault_keeper.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"
#include "base/codec.h"
#include "base/field_value.h"
#include "base/file.h"
#include "base/log.h"
#include "kernel/capability.h"
#include "scan/automaton.h"
#include "vault/binding_wire.h"
#include "vault/minting.h"
#include "vault/source.h"

namespace isola::launcher {

namespace {

using vault::KeyPair;
using vault::Keys;
using vault::Secret;

constexpr size_t kMostHelpers = 64, kMostWaiting = 16384;
constexpr size_t kMostOpened = 160 << 10;  // bytes of what one sandbox is given: one message to the gate
// Of a helper, before it is killed: one that hangs must not hold up what is asked of its sandbox next. A key out of a
// passphrase may take long on a slow machine.
constexpr auto kHelperTime = std::chrono::seconds(8), kDeriveTime = std::chrono::seconds(60);
constexpr int64_t kMakeAgain = 30'000;                        // milliseconds, where a token could not be made
constexpr auto kFetchTime = std::chrono::milliseconds(3500);  // all of one sandbox's: whoever waits has five seconds

// Into a pipe that the helper reads: it fits into the pipe's buffer, so nobody waits.
Result<void> write_keys(int fd, const Keys& keys) {
  Secret all = Secret::of_size(3 * vault::kKeyBytes);
  const KeyPair* parts[] = {&keys.current, &keys.gate, keys.old ? &*keys.old : nullptr};
  for (size_t i = 0; i < 3; ++i)
    if (parts[i])
      std::memcpy(all.data() + i * vault::kKeyBytes, parts[i]->secret_key().view().data(), vault::kKeyBytes);
  return write_all(fd, all.view());
}

Result<Secret> read_secret(int fd, size_t size) {
  Secret bytes = Secret::of_size(size);
  for (size_t at = 0; at < size;) {
    ssize_t n = ::read(fd, bytes.data() + at, size - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::unavailable, "a key did not come");
    at += static_cast<size_t>(n);
  }
  return bytes;
}

Result<Keys> read_keys(int fd) {
  ISOLA_TRY(Secret all, read_secret(fd, 3 * vault::kKeyBytes));
  auto part = [&](size_t i) { return all.view().substr(i * vault::kKeyBytes, vault::kKeyBytes); };
  ISOLA_TRY(KeyPair current, KeyPair::from(Secret(part(0))));
  ISOLA_TRY(KeyPair gate, KeyPair::from(Secret(part(1))));
  Keys keys{std::move(current), std::move(gate), std::nullopt};
  if (part(2).find_first_not_of('\0') != std::string_view::npos) {
    ISOLA_TRY(KeyPair old, KeyPair::from(Secret(part(2))));
    keys.old = std::move(old);
  }
  return keys;
}

const KeyPair& key_of(const Keys& keys, std::string_view sealed) {
  return keys.old && vault::is_sealed_to(keys.old->open_key(), sealed) ? *keys.old : keys.current;
}

Result<std::string> sealed_anew(const Keys& keys, std::string_view sealed) {
  if (vault::is_sealed_to(keys.current.open_key(), sealed)) return std::string(sealed);
  ISOLA_TRY(Secret opened, vault::open_sealed(key_of(keys, sealed), sealed));
  return vault::seal(keys.current.open_key(), opened.view());
}

// In a helper: opens what one sandbox is granted and seals it for the gate.
class Opening {
 public:
  Opening(const Keys& keys, const OpenRequest& request, const FetchAs& as,
          std::optional<vault::SigningKeys::One> signing)
      : keys_(keys), request_(request), as_(as), signing_(std::move(signing)) {}

  Result<std::string> all() {
    ISOLA_TRY(auto bindings, vault::decode_bindings(request_.bindings));
    if (auto before = vault::decode_bindings(request_.before))
      for (auto& one : *before) before_[one.id] = std::move(one);
    std::vector<vault::Binding> opened;
    vault::Reasons missing;
    // Those that cannot be opened go along without their values: there is room for that, as there was on the way here.
    size_t size = 0;
    for (const auto& binding : bindings) size += vault::encode_bindings({vault::without_value(binding)}).size();
    for (auto& binding : bindings) {
      auto closed = vault::without_value(binding);
      auto done = open(binding);
      const size_t more = done ? vault::encode_bindings({binding}).size() - vault::encode_bindings({closed}).size() : 0;
      if (done && size + more > kMostOpened)
        done = fail(Code::exhausted, "the values of one sandbox are too large together");
      if (!done) {
        missing[binding.id] = done.error().message;
        opened.push_back(std::move(closed));
      } else {
        size += more;
        opened.push_back(std::move(binding));
      }
    }
    Writer out;
    out.str(vault::encode_bindings(opened));
    out.str(vault::encode_reasons(missing));
    out.str(vault::encode_reasons(unsendable_));
    return out.take();
  }

 private:
  Result<void> open(vault::Binding& binding) {
    ISOLA_TRY(vault::Kept kept, vault::open_kept(key_of(keys_, binding.sealed), binding.sealed));
    const bool token = kept.source && kept.source->type == vault::Source::Type::jwt;
    const bool minted = kept.source && vault::is_minted(*kept.source);
    const std::string mark = vault::mark_of(binding, token && signing_ ? signing_->id : "");
    auto known = before_.find(binding.id);
    const vault::Binding* same = known != before_.end() && known->second.mark == mark ? &known->second : nullptr;
    if (same && (minted ? now_ < same->due : request_.only_due)) return use(binding, *same);
    auto made = make(kept, binding);
    if (!made && same && minted && now_ < same->until) {
      log::warn("launcher", "{} goes on with a token that was made before: {}", request_.sandbox, made.error().message);
      use(binding, *same);
      binding.due = now_ + kMakeAgain;
      return {};
    }
    if (!made) return std::unexpected(made.error());
    // It would be found everywhere, and so it is looked for nowhere: what goes out with it could come back unseen.
    if (!binding.unsearched && !scan::is_searchable(made->value.view()))
      return fail(Code::invalid, vault::kUnsearchable);
    if (vault::stands_in_header(binding.place) && !is_field_value(made->value.view()))
      unsendable_[binding.id] = vault::kUnsendable;
    ISOLA_TRY(binding.sealed, vault::seal(keys_.gate.open_key(), made->value.view()));
    binding.until = made->until;
    binding.due = made->due;
    binding.serial = made->serial;
    binding.mark = mark;
    binding.print = print_of(binding, made->value);
    binding.identity.clear();
    return {};
  }

  // By a key, and of this binding alone: nobody finds out by trying, nor that two secrets are the same.
  std::string print_of(const vault::Binding& binding, const Secret& value) const {
    auto print = keys_.gate.derive("print of a value: " + request_.sandbox + " " + binding.id, value.view());
    return vault::to_base64(print.view().substr(0, 16));
  }

  static Result<void> use(vault::Binding& binding, const vault::Binding& before) {
    binding.sealed = before.sealed;
    binding.until = before.until;
    binding.due = before.due;
    binding.serial = before.serial;
    binding.mark = before.mark;
    binding.print = before.print;
    binding.identity.clear();
    return {};
  }

  Result<vault::Made> make(vault::Kept& kept, const vault::Binding& binding) {
    if (!kept.source) return vault::Made{.value = std::move(kept.value)};
    if (kept.source->type != vault::Source::Type::jwt) return fetch_value(*kept.source, as_, until_);
    if (!signing_) return fail(Code::unavailable, "there is no key yet that tokens are signed with");
    ISOLA_TRY(Secret der, vault::open_sealed(key_of(keys_, signing_->sealed), signing_->sealed));
    ISOLA_TRY(auto key, vault::RsaKey::from_der(der.view()));
    return vault::make_identity_token(key, *kept.source, binding, request_.sandbox, now_);
  }

  const Keys& keys_;
  const OpenRequest& request_;
  FetchAs as_;
  std::optional<vault::SigningKeys::One> signing_;
  std::map<std::string, vault::Binding> before_;
  vault::Reasons unsendable_;
  const int64_t now_ = milliseconds_now();
  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + kFetchTime;
};

Result<std::string> opened_for_gate(const Keys& keys, const OpenRequest& request, const FetchAs& as,
                                    std::optional<vault::SigningKeys::One> signing) {
  return Opening(keys, request, as, std::move(signing)).all();
}

// A vault that is locked opens nothing, and says so of each.
Result<std::string> none_opened(const std::string& text, const std::string& why) {
  ISOLA_TRY(auto bindings, vault::decode_bindings(text));
  vault::Reasons missing;
  for (auto& binding : bindings) {
    missing[binding.id] = why;
    binding = vault::without_value(std::move(binding));
  }
  Writer out;
  out.str(vault::encode_bindings(bindings));
  out.str(vault::encode_reasons(missing));
  out.str("");
  return out.take();
}

}  // namespace

VaultKeeper::~VaultKeeper() {
  for (auto& [fd, helping] : helpers_) {
    loop_.unwatch(fd);
    loop_.cancel(helping.timer);
  }
}

void VaultKeeper::open() {
  auto file = vault::KeyFile::open_or_make(options_.path);
  if (!file) {
    trouble_ = file.error().message;
    log::error("launcher", "there is no vault: {}", trouble_);
    return;
  }
  trouble_.clear();
  file_ = std::move(*file);
  auto signing = vault::SigningKeys::open(options_.path.substr(0, options_.path.rfind('/') + 1) + "signing");
  if (!signing) log::error("launcher", "no tokens are signed: {}", signing.error().message);
  signing_trouble_ = signing ? "" : signing.error().message;
  if (signing) signing_ = std::move(*signing);
  if (file_->locked()) log::warn("launcher", "the vault is locked: `isola vault unlock` opens it");
}

VaultState VaultKeeper::state() const {
  if (!file_) return {.trouble = trouble_};
  const auto& key = file_->open_key();
  return {.open_key = std::string(reinterpret_cast<const char*>(key.data()), key.size()),
          .locked = file_->locked(),
          .has_passphrase = file_->has_passphrase(),
          .rotating = file_->rotating(),
          .trouble = {}};
}

Result<void> VaultKeeper::ready() const {
  if (!file_) return fail(Code::unavailable, "there is no vault: " + trouble_);
  if (file_->locked()) return fail(Code::unavailable, "the vault is locked: `isola vault unlock` opens it");
  return {};
}

Secret VaultKeeper::gate_key() const {
  return file_ && !file_->locked() ? file_->keys()->gate.secret_key().copy() : Secret();
}

// ---- the passphrase -------------------------------------------------------------------------------------------------

void VaultKeeper::derive(std::string_view passphrase, const vault::Lock& lock, std::function<Result<void>(Secret)> then,
                         Done done) {
  auto pipe = kernel::make_pipe();
  if (!pipe) return done(std::unexpected(pipe.error()));
  // Argon2id wants more memory and time than the launcher has.
  auto helper = kernel::Helper::start({.name = "isola-vault", .keep = {pipe->second.get()}},
                                      [&](kernel::Helper::Talk&) -> Result<std::string> {
                                        ISOLA_TRY(Secret derived, vault::derive_lock(passphrase, lock));
                                        ISOLA_CHECK(write_all(pipe->second.get(), derived.view()));
                                        return "";
                                      });
  if (!helper) return done(std::unexpected(helper.error()));
  auto end = std::make_shared<Fd>(std::move(pipe->first));
  pipe->second.reset();
  auto derived_it = [end, then = std::move(then), done = std::move(done)](const Result<std::string>& result) {
    if (!result) return done(result);
    auto derived = read_secret(end->get(), vault::kKeyBytes);
    if (!derived) return done(std::unexpected(derived.error()));
    auto finished = then(std::move(*derived));
    done(finished ? Result<std::string>("") : Result<std::string>(std::unexpected(finished.error())));
  };
  watch(std::move(*helper), kDeriveTime, std::move(derived_it));
}

void VaultKeeper::unlock(std::string_view passphrase, Done done) {
  if (!file_) return done(std::unexpected(ready().error()));
  if (!file_->locked()) return done(std::string());
  derive(
      passphrase, file_->lock(),
      [this](Secret derived) -> Result<void> {
        const bool was = file_->locked();
        ISOLA_CHECK(file_->unlock(std::move(derived)));
        if (was) log::info("launcher", "the vault is unlocked");
        if (was && on_unlock) on_unlock();
        return {};
      },
      std::move(done));
}

void VaultKeeper::protect(std::string_view passphrase, Done done) {
  if (auto is = ready(); !is) return done(std::unexpected(is.error()));
  if (passphrase.empty()) {
    auto removed = file_->remove_passphrase();
    return done(removed ? Result<std::string>("") : Result<std::string>(std::unexpected(removed.error())));
  }
  vault::Lock lock = vault::new_lock();
  derive(
      passphrase, lock, [this, lock](Secret derived) { return file_->set_passphrase(lock, std::move(derived)); },
      std::move(done));
}

Result<void> VaultKeeper::begin_rotation() {
  ISOLA_CHECK(ready());
  return file_->begin_rotation();
}

Result<void> VaultKeeper::end_rotation() {
  ISOLA_CHECK(ready());
  return file_->end_rotation();
}

// ---- with the keys --------------------------------------------------------------------------------------------------

void VaultKeeper::run(Wanted wanted) {
  if (auto is = ready(); !is) return wanted.done(std::unexpected(is.error()));
  if (helpers_.size() < kMostHelpers && waiting_.empty()) return begin(std::move(wanted));
  if (waiting_.size() >= kMostWaiting)
    return wanted.done(fail(Code::unavailable, "too much is asked of the vault; try again"));
  waiting_.push_back(std::move(wanted));
}

void VaultKeeper::begin(Wanted wanted) {
  auto pipe = kernel::make_pipe();
  if (!pipe) return wanted.done(std::unexpected(pipe.error()));
  auto helper = kernel::Helper::start(
      {.name = "isola-vault", .capabilities = wanted.capabilities, .keep = {pipe->first.get(), wanted.keep}},
      [&](kernel::Helper::Talk&) -> Result<std::string> {
        ISOLA_TRY(Keys keys, read_keys(pipe->first.get()));
        return wanted.work(keys);
      });
  if (!helper) return wanted.done(std::unexpected(helper.error()));
  auto written = write_keys(pipe->second.get(), *file_->keys());
  if (!written) log::error("launcher", "{}", written.error().message);  // then it ends without its keys, and says so
  watch(std::move(*helper), kHelperTime, std::move(wanted.done));
}

// One that cannot begin is told so at once, and makes room for another.
void VaultKeeper::begin_next() {
  while (!waiting_.empty() && helpers_.size() < kMostHelpers) {
    Wanted next = std::move(waiting_.front());
    waiting_.pop_front();
    begin(std::move(next));
  }
}

void VaultKeeper::watch(kernel::Helper helper, std::chrono::seconds time, Done done) {
  int fd = helper.fd();
  // Its end is seen where its word would be.
  auto timer = loop_.after(time, [this, fd] { helpers_.at(fd).helper.kill(); });
  helpers_[fd] = {std::move(helper), std::move(done), timer};
  auto watched = loop_.watch(fd, EPOLLIN, [this, fd](uint32_t) {
    auto it = helpers_.find(fd);
    if (it == helpers_.end()) return;
    auto word = it->second.helper.next();
    loop_.unwatch(fd);
    loop_.cancel(it->second.timer);
    auto told = std::move(it->second.done);
    helpers_.erase(it);
    begin_next();
    if (on_helper_end) on_helper_end();
    told(word ? Result<std::string>(std::move(word->bytes)) : Result<std::string>(std::unexpected(word.error())));
  });
  if (watched) return;
  loop_.cancel(timer);
  helpers_[fd].helper.kill();
  auto told = std::move(helpers_[fd].done);
  helpers_.erase(fd);
  told(std::unexpected(watched.error()));
}

FetchAs VaultKeeper::fetch_as() const {
  return {.user = options_.user ? options_.user() : 0, .authorities = options_.authorities};
}

void VaultKeeper::open_bindings(const OpenRequest& request, Done done) {
  if (auto is = ready(); !is) return done(none_opened(request.bindings, is.error().message));
  std::optional<vault::SigningKeys::One> signing;
  if (const auto* key = signing_ ? signing_->current(milliseconds_now() / 1000) : nullptr) signing = *key;
  run({.capabilities = kFetchCapabilities,
       .work = [request, as = fetch_as(),
                signing](const Keys& keys) { return opened_for_gate(keys, request, as, signing); },
       .done = std::move(done)});
}

void VaultKeeper::reseal_values(const std::vector<std::string>& sealed, Done done) {
  auto work = [sealed](const Keys& keys) -> Result<std::string> {
    std::vector<std::string> fresh;
    for (const auto& one : sealed) {
      ISOLA_TRY(std::string anew, sealed_anew(keys, one));
      fresh.push_back(std::move(anew));
    }
    Writer out;
    out.strs(fresh);
    return out.take();
  };
  run({.work = work, .done = std::move(done)});
}

void VaultKeeper::reseal_bindings(const std::string& bindings, Done done) {
  auto work = [bindings](const Keys& keys) -> Result<std::string> {
    ISOLA_TRY(auto all, vault::decode_bindings(bindings));
    for (auto& one : all) {
      ISOLA_TRY(one.sealed, sealed_anew(keys, one.sealed));
    }
    return vault::encode_bindings(all);
  };
  run({.work = work, .done = std::move(done)});
}

void VaultKeeper::open_value(const std::string& sealed, Done done) {
  std::string allowed = options_.path.substr(0, options_.path.rfind('/') + 1) + "allow-exposed";
  if (::access(allowed.c_str(), F_OK) < 0)
    return done(fail(Code::denied,
                     "this machine does not allow values of secrets inside sandboxes (`isola vault expose` does)"));
  auto work = [sealed, as = fetch_as()](const Keys& keys) -> Result<std::string> {
    ISOLA_TRY(vault::Kept kept, vault::open_kept(key_of(keys, sealed), sealed));
    if (!kept.source) return std::string(kept.value.view());
    if (kept.source->type == vault::Source::Type::jwt)
      return fail(Code::unsupported, "a token of a sandbox's identity is for bindings: it says whom it is for");
    ISOLA_TRY(auto made, fetch_value(*kept.source, as, std::chrono::steady_clock::now() + kFetchTime));
    return std::string(made.value.view());
  };
  run({.capabilities = kFetchCapabilities, .work = work, .done = std::move(done)});
}

void VaultKeeper::open_into(const std::string& sealed, const Fd& into, Done done) {
  // A copy: whoever asks may have closed his own when the turn comes.
  auto end = std::make_shared<Fd>(::fcntl(into.get(), F_DUPFD_CLOEXEC, kKeptFrom));
  if (!*end) return done(sys_error("cannot hand a value on"));
  const int fd = end->get();
  auto work = [sealed, as = fetch_as(), end](const Keys& keys) -> Result<std::string> {
    ISOLA_TRY(vault::Kept kept, vault::open_kept(key_of(keys, sealed), sealed));
    if (kept.source) {
      if (kept.source->type == vault::Source::Type::jwt)
        return fail(Code::unsupported, "a token of a sandbox's identity is no key of a store");
      ISOLA_TRY(auto made, fetch_value(*kept.source, as, std::chrono::steady_clock::now() + kFetchTime));
      ISOLA_CHECK(write_all(end->get(), made.value.view()));
      return "";
    }
    ISOLA_CHECK(write_all(end->get(), kept.value.view()));  // it fits into the pipe
    return "";
  };
  run({.capabilities = kFetchCapabilities, .work = work, .done = std::move(done), .keep = fd});
}

// ---- the keys that sign ---------------------------------------------------------------------------------------------

void VaultKeeper::signing_keys(SigningWish wish, Done done) {
  if (!signing_) return done(fail(Code::unavailable, "no tokens are signed: " + signing_trouble_));
  const int64_t now = milliseconds_now() / 1000;
  if (wish == SigningWish::look && !signing_->empty()) return done(signing_->published(now));
  if (signing_changes_ && wish == SigningWish::look) return waiting_for_signing_.push_back(std::move(done));
  if (signing_changes_) return done(fail(Code::unavailable, "another key is being made; try again"));
  make_signing_key(wish == SigningWish::replace, std::move(done));
}

void VaultKeeper::make_signing_key(bool at_once, Done done) {
  if (auto is = ready(); !is) return done(std::unexpected(is.error()));
  signing_changes_ = true;
  auto work = [](const Keys& keys) -> Result<std::string> {
    ISOLA_TRY(auto key, vault::RsaKey::make());
    ISOLA_TRY(Secret der, key.der());
    ISOLA_TRY(std::string sealed, vault::seal(keys.current.open_key(), der.view()));
    Writer out;
    out.str(key.id());
    out.str(key.jwk());
    out.str(sealed);
    return out.take();
  };
  auto keep_it = [this, at_once, done = std::move(done)](const Result<std::string>& made) {
    signing_changes_ = false;
    auto keep = [&]() -> Result<std::string> {
      if (!made) return std::unexpected(made.error());
      const int64_t now = milliseconds_now() / 1000;
      Reader in(*made);
      vault::SigningKeys::One key{.id = in.str(), .created = now, .jwk = in.str(), .sealed = in.str()};
      if (!in.done()) return fail(Code::corrupt, "unreadable key");
      ISOLA_CHECK(signing_->add(std::move(key), now, at_once));
      log::info("launcher", "tokens have another key: {}", signing_->all().back().id);
      return signing_->published(now);
    };
    auto kept = keep();
    auto waiting = std::exchange(waiting_for_signing_, {});
    done(kept);
    for (auto& one : waiting) one(kept);
  };
  run({.work = work, .done = std::move(keep_it)});
}

void VaultKeeper::reseal_signing(Done done) {
  if (!signing_ || signing_->empty()) return done(std::string());
  if (signing_changes_) return done(fail(Code::unavailable, "a key for tokens is being made; try again"));
  std::vector<std::string> sealed;
  for (const auto& one : signing_->all()) sealed.push_back(one.sealed);
  signing_changes_ = true;
  reseal_values(sealed, [this, done = std::move(done)](const Result<std::string>& fresh) {
    signing_changes_ = false;
    auto keep = [&]() -> Result<std::string> {
      if (!fresh) return std::unexpected(fresh.error());
      Reader in(*fresh);
      auto anew = in.strs();
      if (!in.done()) return fail(Code::corrupt, "unreadable keys");
      ISOLA_CHECK(signing_->reseal(anew));
      return "";
    };
    auto kept = keep();
    auto waiting = std::exchange(waiting_for_signing_, {});
    done(kept);
    for (auto& one : waiting) signing_keys(SigningWish::look, std::move(one));
  });
}

}  // namespace isola::launcher
