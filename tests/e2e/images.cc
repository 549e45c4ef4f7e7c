#include "e2e/images.h"

#include "boundary/gvisor/runsc.h"
#include "boundary/microvm/machine.h"

namespace isola::e2e {

std::string lacks_memory(BoundaryKind kind) {
  if (kind == BoundaryKind::jail)
    return boundary::jail::Criu::find().program.empty() ? "no criu here; `./dev criu` provides one" : "";
  if (kind == BoundaryKind::microvm) {
    auto machine = boundary::microvm::Machine::find();
    return machine ? "" : machine.error().message;
  }
  auto runsc = boundary::gvisor::Runsc::find();
  if (!runsc) return runsc.error().message;
  auto keeps = runsc->keeps_memory();
  return keeps ? "" : keeps.error().message;
}

using launcher::LaunchRequest;

Result<void> Counting::follow(boundary::Link link) {
  guest_ = std::make_unique<guest::PipeClient>(std::move(link.from_guest), std::move(link.to_guest));
  guest_->set_patience(std::chrono::seconds(60));
  ISOLA_TRY(auto hello, guest_->hello());
  if (hello.id != id_) return fail(Code::corrupt, "another sandbox answered: " + hello.id + " instead of " + id_);
  generation_ = hello.generation;
  received_->clear();
  if (pid_) run_ = guest_->begin_attach(pid_, seen_, {.out = [r = received_](std::string_view s) { *r += s; }});
  return {};
}

Result<std::string> Counting::ask() {
  ISOLA_CHECK(guest_->write_stdin(run_, "next\n"));
  ISOLA_CHECK(guest_->pump_until([&] { return received_->find('\n') != std::string::npos || run_->ended(); },
                                 std::chrono::seconds(60)));
  size_t end = received_->find('\n');
  if (end == std::string::npos) return fail(Code::internal, "the counter has ended");
  std::string answer = received_->substr(0, end);
  received_->erase(0, end + 1);
  seen_ = run_->seq();
  pid_ = run_->pid();
  return answer;
}

Result<Counting> Counting::start(launcher::Client& client, const LaunchRequest& request) {
  Counting box;
  ISOLA_TRY(auto sandbox, client.launch(request));
  box.id_ = sandbox.reply.id;
  ISOLA_CHECK(box.follow(std::move(sandbox.link)));
  box.run_ = box.guest_->begin_run({.argv = {"python3", "-c", kCounter}, .stdin_mode = guest::Stdin::pipe},
                                   {.out = [r = box.received_](std::string_view s) { *r += s; }});
  ISOLA_TRY(std::string first, box.ask());
  box.word_ = first.substr(0, first.find(' '));
  box.count_ = 1;
  if (first != box.word_ + " 1") return fail(Code::internal, "the counter says " + first);
  return box;
}

Result<Counting> Counting::resume(launcher::Client& client, LaunchRequest request, const Counting& saved) {
  Counting box;
  ISOLA_TRY(auto sandbox, client.launch(request));
  box.id_ = sandbox.reply.id;
  box.birth_ = sandbox.reply.birth;
  box.latency_ = sandbox.reply.latency;
  box.word_ = saved.word_;
  box.count_ = saved.count_;
  box.pid_ = saved.pid_;
  box.seen_ = saved.seen_;
  ISOLA_CHECK(box.follow(std::move(sandbox.link)));
  return box;
}

Result<void> Counting::next() {
  ISOLA_TRY(std::string answer, ask());
  std::string wanted = word_ + " " + std::to_string(++count_);
  if (answer != wanted) return fail(Code::corrupt, "the counter says '" + answer + "' instead of '" + wanted + "'");
  return {};
}

Result<std::string> Counting::sh(const std::string& script, const std::string& user) {
  std::string out;
  auto take = [&](std::string_view s) { out += s; };
  ISOLA_TRY(auto exit, guest_->run({.argv = {"sh", "-c", script}, .user = user}, {.out = take, .err = take}));
  if (exit.code != 0) return fail(Code::internal, script + ": exit " + std::to_string(exit.code) + ": " + out);
  return out;
}

Result<launcher::CheckpointReply> Counting::save(launcher::Client& client, bool memory, bool keep_running) {
  ISOLA_CHECK(guest_->quiesce());
  launcher::CheckpointRequest request{.id = id_, .memory = memory, .keep_running = keep_running};
  return client.checkpoint(request);
}

Result<void> Counting::attach(launcher::Client& client) {
  ISOLA_TRY(auto link, client.link(id_));
  return follow(std::move(link));
}

}  // namespace isola::e2e
