// A launcher made of a thread, for tests of the service: it has the sandboxes that a test gives it, does what it is
// asked, and where the test says so fails first, or keeps its answers to itself for a while.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <condition_variable>
#include <map>
#include <set>
#include <thread>

#include "base/codec.h"
#include "base/ids.h"
#include "kernel/process.h"
#include "sandbox/service.h"
#include "store/test_store.h"
#include "vault/binding_wire.h"

namespace isola::sandbox {

namespace net = boost::asio;

class FakeLauncher {
 public:
  FakeLauncher() {
    auto ends = kernel::socket_pair();
    if (!ends) std::abort();
    near_ = std::move(ends->first);
    far_ = std::move(ends->second);
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeLauncher() {
    ::shutdown(near_.get(), SHUT_RDWR);
    thread_.join();
  }
  Result<Fd> connect() {  // once
    if (!far_) return isola::fail(Code::unavailable, "the fake launcher has one line only");
    return std::move(far_);
  }

  void add(const std::string& id, bool ephemeral = false, bool parked = false, int64_t life = 0) {
    std::lock_guard lock(mutex_);
    launcher::SandboxSummary one{.id = id};
    one.life = life;
    one.ephemeral = ephemeral;
    one.parked = parked;
    there_[id] = one;
  }
  // As if it lived, to whoever asks what there is, and to nobody else.
  void show(const std::string& id) {
    std::lock_guard lock(mutex_);
    shown_.insert(id);
  }
  void forget(const std::string& id) {
    std::lock_guard lock(mutex_);
    there_.erase(id);
  }
  // The next so many of them are refused.
  void fail(launcher::Op op, int times, Code code = Code::internal) {
    std::lock_guard lock(mutex_);
    failures_[op] = times;
    failure_codes_[op] = code;
  }
  // Done, but not answered until release().
  void hold(launcher::Op op) {
    std::lock_guard lock(mutex_);
    held_ops_.insert(op);
  }
  void release(launcher::Op op) {
    std::lock_guard lock(mutex_);
    held_ops_.erase(op);
    for (const auto& [answer, descriptors] : held_[op]) (void)kernel::send_message(near_.get(), answer, descriptors);
    held_.erase(op);
  }
  // Waits until that many were asked for, all in all.
  void wait_for(launcher::Op op, int times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_[op] >= times; });
  }
  int asked(launcher::Op op) {
    std::lock_guard lock(mutex_);
    return asked_[op];
  }
  // Waits until that many looks were taken after now.
  void wait_for_lists(int more) { wait_for(launcher::Op::list, asked(launcher::Op::list) + more); }
  std::set<std::string> left() {
    std::lock_guard lock(mutex_);
    std::set<std::string> ids;
    for (const auto& [id, summary] : there_) ids.insert(id);
    return ids;
  }
  int64_t life(const std::string& id) {  // -1: it does not live
    std::lock_guard lock(mutex_);
    return there_.contains(id) ? there_[id].life : -1;
  }
  void damage(const std::string& image) {
    std::lock_guard lock(mutex_);
    damaged_ = image;
  }
  std::set<std::string> read_through() {  // images, thoroughly
    std::lock_guard lock(mutex_);
    return read_through_;
  }
  // What was to be made of the image that was looked at last.
  launcher::LaunchRequest wanted() {
    std::lock_guard lock(mutex_);
    return wanted_;
  }
  std::set<std::string> volumes() {
    std::lock_guard lock(mutex_);
    return volumes_;
  }
  void add_image(const launcher::ImageSummary& image) {
    std::lock_guard lock(mutex_);
    images_.push_back(image);
  }
  std::set<std::string> images() {
    std::lock_guard lock(mutex_);
    std::set<std::string> ids;
    for (const auto& image : images_) ids.insert(image.id);
    return ids;
  }
  void add_volume(const std::string& id) {
    std::lock_guard lock(mutex_);
    volumes_.insert(id);
  }
  std::string policy() {
    std::lock_guard lock(mutex_);
    return policy_;
  }
  // The word that one has ended, whether it has or not.
  void tell_end(const std::string& id, EndReason reason) {
    launcher::Ended ended;
    ended.id = id;
    ended.reason = reason;
    Writer out;
    out.u32(0);
    encode(out, ended);
    (void)kernel::send_message(near_.get(), out.data());
  }
  // What the gate has to tell, to whoever listens.
  void tell_gate(const gate::Event& event, uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gate_tag_ != 0; });
    Writer out;
    out.u32(gate_tag_);
    out.u8(0);
    encode(out, event);
    out.u64(number);
    (void)kernel::send_message(near_.get(), out.data());
  }
  // What the service said to have of it, when it began to listen.
  uint64_t known() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gate_tag_ != 0; });
    return known_;
  }
  // How often it was asked to tell what the gate tells.
  void wait_for_listening(int times) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return listening_ >= times; });
  }
  void wait_for_acknowledgement(uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return acknowledged_ >= number; });
  }
  void remove(const std::string& id) {
    std::lock_guard lock(mutex_);
    there_.erase(id);
  }
  std::vector<std::string> revoked() {  // "sandbox binding"
    std::lock_guard lock(mutex_);
    return revoked_;
  }
  // What the gate was told last, with its value.
  std::vector<std::pair<vault::Binding, std::string>> bindings() {
    std::lock_guard lock(mutex_);
    std::vector<std::pair<vault::Binding, std::string>> out;
    for (auto& binding : vault::decode_bindings(bindings_).value_or(std::vector<vault::Binding>())) {
      auto value = vault::open_sealed(*key_, binding.sealed);
      out.emplace_back(std::move(binding), value ? std::string(value->view()) : "cannot be opened");
    }
    return out;
  }

 private:
  void serve() {
    for (;;) {
      auto message = kernel::receive_message(near_.get());
      if (!message || message->bytes.empty()) return;
      Reader in(message->bytes);
      uint32_t tag = in.u32();
      auto op = static_cast<launcher::Op>(in.u8());
      if (op == launcher::Op::gate_events) {
        std::lock_guard lock(mutex_);
        launcher::GateWatch watch;
        decode(in, watch);
        if (watch.keeps) gate_tag_ = tag, known_ = watch.known, ++listening_;
        changed_.notify_all();
        continue;
      }
      if (op == launcher::Op::gate_ack) {
        std::lock_guard lock(mutex_);
        acknowledged_ = in.u64();
        changed_.notify_all();
        continue;
      }
      Writer out;
      out.u32(tag);
      std::lock_guard lock(mutex_);
      answer(op, in, out);
      ++asked_[op];
      changed_.notify_all();
      if (held_ops_.contains(op)) {
        held_[op].emplace_back(out.take(), std::exchange(handed_over_, {}));
        continue;
      }
      if (!kernel::send_message(near_.get(), out.data(), handed_over_)) return;
      handed_over_.clear();
    }
  }

  void answer(launcher::Op op, Reader& in, Writer& out) {
    auto no = [&](Code code, const char* why) {
      out.u8(1);
      launcher::encode(out, Error{code, why});
    };
    if (op == launcher::Op::verify_image) {
      Reader said = in;
      (void)said.str(), (void)said.u8();
      if (said.u8() != 0) launcher::decode(said, wanted_);
    }
    if (failures_[op] > 0) {
      --failures_[op];
      return no(failure_codes_[op], "the fake launcher was told to fail");
    }
    if (op == launcher::Op::list) {
      out.u8(0);
      out.u32(static_cast<uint32_t>(there_.size() + shown_.size()));
      for (const auto& [id, summary] : there_) encode(out, summary);
      for (const auto& id : shown_) encode(out, launcher::SandboxSummary{.id = id});
      return out.u8(0);
    }
    if (op == launcher::Op::launch) {
      launcher::LaunchRequest request;
      decode(in, request);
      if (there_.contains(request.id)) return no(Code::exists, "there is such a sandbox already");
      int to_guest[2], from_guest[2];
      if (::pipe2(to_guest, O_CLOEXEC) < 0 || ::pipe2(from_guest, O_CLOEXEC) < 0) std::abort();
      for (int end : {to_guest[0], to_guest[1], from_guest[0], from_guest[1]}) ends_.emplace_back(end);
      handed_over_ = {to_guest[1], from_guest[0]};
      launcher::LaunchReply reply{.id = request.id.empty() ? new_sandbox_id() : request.id};
      if (!request.id.empty()) reply.birth = Birth::resumed;
      there_[reply.id] = {.id = reply.id, .life = request.life};
      out.u8(0);
      return encode(out, reply);
    }
    if (op == launcher::Op::set_policy) {
      launcher::PolicyRequest request;
      decode(in, request);
      policy_ = request.policy;
      bindings_ = request.bindings;
      return out.u8(0);
    }
    if (op == launcher::Op::revoke) {
      launcher::RevokeRequest request;
      decode(in, request);
      for (const auto& binding : request.bindings) revoked_.push_back(request.id + " " + binding);
      return out.u8(0);
    }
    if (op == launcher::Op::vault_state) {
      launcher::VaultState state;
      state.open_key.assign(key_->open_key().begin(), key_->open_key().end());
      out.u8(0);
      return encode(out, state);
    }
    if (op == launcher::Op::images) {
      out.u8(0);
      out.u32(static_cast<uint32_t>(images_.size()));
      for (const auto& image : images_) encode(out, image);
      return out.u8(0);
    }
    if (op == launcher::Op::checkpoint) {
      launcher::CheckpointRequest request;
      decode(in, request);
      if (!there_.contains(request.id)) return no(Code::not_found, "there is no such sandbox");
      launcher::ImageSummary image{.id = new_image_id(), .sandbox = request.id};
      image.verb = request.keep_running ? "snapshot" : "pause";
      images_.push_back(image);
      if (!request.keep_running) there_.erase(request.id);
      out.u8(0);
      return encode(out, launcher::CheckpointReply{.image = image.id});
    }
    if (op == launcher::Op::verify_image || op == launcher::Op::drop_image) {
      std::string id = in.str();
      if (std::ranges::find(images_, id, &launcher::ImageSummary::id) == images_.end())
        return no(Code::not_found, "there is no such image");
      if (op == launcher::Op::verify_image && in.u8() != 0) {
        read_through_.insert(id);
        if (id == damaged_) return no(Code::corrupt, ("image " + id + " is not what was written").c_str());
      }
      if (op == launcher::Op::drop_image) std::erase_if(images_, [&](const auto& one) { return one.id == id; });
      return out.u8(0);
    }
    if (op == launcher::Op::look_at_volume) {
      std::string id = in.str();
      if (!volumes_.contains(id)) return no(Code::not_found, "there is no such volume");
      out.u8(0);
      return encode(out, launcher::VolumeSummary{.id = id, .used = 4711});
    }
    if (op == launcher::Op::volumes) {
      out.u8(0);
      out.u32(static_cast<uint32_t>(volumes_.size()));
      for (const auto& id : volumes_) encode(out, launcher::VolumeSummary{.id = id});
      return out.u8(0);
    }
    if (op == launcher::Op::make_volume || op == launcher::Op::drop_volume) {
      std::string id = in.str();
      if (op == launcher::Op::drop_volume && !volumes_.contains(id))
        return no(Code::not_found, "there is no such volume");
      op == launcher::Op::drop_volume ? (void)volumes_.erase(id) : (void)volumes_.insert(id);
      return out.u8(0);
    }
    bool known = op == launcher::Op::kill || op == launcher::Op::own || op == launcher::Op::freeze ||
                 op == launcher::Op::thaw || op == launcher::Op::stats;
    if (!known) return no(Code::not_found, "the fake launcher cannot do that");
    std::string id = in.str();
    if (!there_.contains(id)) return no(Code::not_found, "there is no such sandbox");
    out.u8(0);
    if (op == launcher::Op::stats) encode(out, launcher::StatsReply{});
    if (op == launcher::Op::kill) {
      there_.erase(id);
      launcher::Ended ended;
      ended.id = id;
      encode(out, ended);
    }
  }

  Fd near_, far_;
  std::vector<Fd> ends_;  // of guests that say nothing
  std::vector<int> handed_over_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, launcher::SandboxSummary> there_;
  std::map<launcher::Op, int> asked_, failures_;
  std::map<launcher::Op, Code> failure_codes_;
  std::set<launcher::Op> held_ops_;
  std::map<launcher::Op, std::vector<std::pair<std::string, std::vector<int>>>> held_;
  std::set<std::string> volumes_, shown_;
  std::vector<launcher::ImageSummary> images_;
  launcher::LaunchRequest wanted_;
  std::string damaged_;
  std::set<std::string> read_through_;
  std::string policy_, bindings_;
  std::vector<std::string> revoked_;
  uint32_t gate_tag_ = 0;
  uint64_t known_ = 0, acknowledged_ = 0;
  int listening_ = 0;
  Result<vault::KeyPair> key_ = vault::KeyPair::make();
  std::thread thread_;
};

}  // namespace isola::sandbox
