// Requests about the vault, answered by its keeper.
#include "launcher/server.h"
#include "launcher/vault_keeper.h"

namespace isola::launcher {

void Server::set_vault(VaultKeeper& vault) {
  vault_ = &vault;
  vault.on_unlock = [this] {
    if (gate_) gate_->unlocked();
  };
  vault.on_helper_end = [this] { cells_.reap_soon(); };
}

bool Server::dispatch_vault(OwnerId id, uint32_t tag, Op op, Reader in) {
  if (op < Op::vault_state || op > Op::vault_signing) return false;
  auto refuse = [&](Code code, const char* why) {
    reply(id, tag, fail(code, why));
    return true;
  };
  auto answer = [this, id, tag](const Result<std::string>& result) { reply(id, tag, result); };
  if (!vault_) return refuse(Code::unsupported, "this launcher has no vault");
  const bool root = connections_.at(id).user == 0;
  switch (op) {
    case Op::vault_state: {
      if (!in.done()) break;
      Writer out;
      encode(out, vault_->state());
      reply(id, tag, out.take());
      return true;
    }
    case Op::vault_unlock:
    case Op::vault_protect: {
      auto passphrase = in.view();
      if (!in.done()) break;
      if (!root) return refuse(Code::denied, "only root may speak of the vault's passphrase");
      op == Op::vault_unlock ? vault_->unlock(passphrase, answer) : vault_->protect(passphrase, answer);
      return true;
    }
    case Op::vault_rotate: {
      auto phase = in.u8();
      if (!in.done() || phase > static_cast<uint8_t>(RotatePhase::end)) break;
      if (!root) return refuse(Code::denied, "only root may rotate the vault's key");
      rotate_vault(static_cast<RotatePhase>(phase), answer);
      return true;
    }
    case Op::vault_reseal: {
      auto sealed = in.strs();
      if (!in.done()) break;
      vault_->reseal_values(sealed, answer);
      return true;
    }
    case Op::vault_open: {
      auto sealed = in.str();
      if (!in.done()) break;
      vault_->open_value(sealed, [this, id, tag](const Result<std::string>& value) {
        Writer out;
        if (value) out.str(*value);
        reply(id, tag, value ? Result<std::string>(out.take()) : value);
      });
      return true;
    }
    case Op::vault_signing: {
      auto number = in.u8();
      if (!in.done() || number > static_cast<uint8_t>(SigningWish::replace)) break;
      auto wish = static_cast<SigningWish>(number);
      if (wish != SigningWish::look && !root) return refuse(Code::denied, "only root may change the key of tokens");
      vault_->signing_keys(wish, [this, id, tag, wish](const Result<std::string>& keys) {
        // Tokens of a key that was taken back are no good any more.
        if (keys && wish == SigningWish::replace && gate_) gate_->open_all_again();
        Writer out;
        if (keys) out.str(*keys);
        reply(id, tag, keys ? Result<std::string>(out.take()) : keys);
      });
      return true;
    }
    default: break;
  }
  return refuse(Code::invalid, "unreadable request");
}

// The end comes when everything is sealed to the new key: the store (by whoever rotates), and what is kept here.
void Server::rotate_vault(RotatePhase phase, const std::function<void(Result<std::string>)>& answer) {
  auto told = [answer](const Result<void>& result) {
    answer(result ? Result<std::string>("") : Result<std::string>(std::unexpected(result.error())));
  };
  if (phase == RotatePhase::begin) return told(vault_->begin_rotation());
  auto the_rest = [this, told, answer](const Result<std::string>& resealed) {
    if (!resealed) return answer(resealed);
    vault_->reseal_signing([this, told, answer](const Result<std::string>& signing) {
      signing ? told(vault_->end_rotation()) : answer(signing);
    });
  };
  if (!gate_) return the_rest(std::string());
  vault::PublicKey key;
  const std::string current = vault_->state().open_key;
  if (current.size() != key.size()) return answer(fail(Code::unavailable, "there is no vault"));
  std::copy(current.begin(), current.end(), key.begin());
  gate_->reseal(
      key, [this](const std::string& bindings, auto done) { vault_->reseal_bindings(bindings, std::move(done)); },
      the_rest);
}

}  // namespace isola::launcher
