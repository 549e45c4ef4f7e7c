#include "dialect/native/unpack.h"

#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "dialect/native/output.h"

namespace isola::native {

using guest::FileType;
using guest::Op;
using nlohmann::json;
using sandbox::BoxPtr;

namespace {

constexpr int kMostPasses = 1000;  // each over 100,000 entries

std::string above(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == 0 || slash == path.npos ? "/" : path.substr(0, slash);
}

class Unpacking {
 public:
  Unpacking(sandbox::Service& service, http::Exchange& ex, BoxPtr box, std::shared_ptr<sandbox::GuestLink> link,
            std::string path, std::string user)
      : service_(service), ex_(ex), box_(box), link_(link), path_(std::move(path)), user_(std::move(user)) {
    while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
  }

  Task<Result<void>> run() {
    ISOLA_CO_TRY(bool there, co_await is_there(path_));
    for (std::string at = path_; !there; at = above(at)) {  // what is made for it, to be taken away again
      made_.push_back(at);
      ISOLA_CO_TRY(there, co_await is_there(above(at)));
    }
    auto worked = co_await place();
    // As root: a tree of somebody's with folders that even they may not write to goes, too. The name is ours.
    guest::Remove rest{beside_, "", true};
    if (!beside_.empty()) (void)co_await call(Op::remove, rest);
    for (size_t i = 0; !worked && i < made_.size(); i++) {
      guest::Remove folder{made_[i], user_, false};
      (void)co_await call(Op::remove, folder);
    }
    co_return worked;
  }

 private:
  template <typename Args>
  Task<Result<std::string>> call(Op op, Args args) {
    return link_->call(op, guest::encode(std::move(args)));
  }

  Task<Result<bool>> is_there(std::string path) {
    guest::StatArgs args{path, user_, false};
    auto stat = co_await call(Op::stat, args);
    if (!stat && stat.error().code != Code::not_found) co_return std::unexpected(std::move(stat).error());
    co_return stat.has_value();
  }

  Task<Result<void>> place() {
    bool fresh = !made_.empty();
    const std::string name = "/.isola-" + new_command_id();
    // In the folder itself where it exists: there, for certain, this user may write, and it is the same disk.
    std::string folder = fresh ? above(path_) : path_;
    guest::Mkdir parents{.path = folder, .user = user_};
    ISOLA_CO_TRY(std::string made, co_await call(Op::mkdir, parents));
    std::string beside = (folder == "/" ? "" : folder) + name;
    guest::Mkdir own{.path = beside, .user = user_, .parents = false};
    ISOLA_CO_TRY(made, co_await call(Op::mkdir, own));
    beside_ = beside;
    ISOLA_CO_CHECK(co_await tar());
    if (fresh) {
      guest::Rename whole{beside_, path_, user_, false};
      auto moved = co_await call(Op::rename, whole);
      if (moved) {
        beside_.clear();
        co_return Result<void>();
      }
      if (moved.error().code != Code::exists) co_return std::unexpected(std::move(moved).error());
    }
    ISOLA_CO_CHECK(co_await join("", Step::look));
    ISOLA_CO_CHECK(co_await join("", Step::move));
    co_return Result<void>();
  }

  Task<Result<void>> tar() {
    sandbox::CommandSpec spec;
    spec.argv = {"tar", "-C", beside_, "-xf", "-"};
    spec.user = user_;
    spec.by = std::string(ex_.noted("key"));
    spec.env = {{"LC_ALL", "C"}};  // its complaints are read here, too
    spec.stdin_mode = guest::Stdin::pipe;
    spec.counted = false;
    ISOLA_CO_TRY(sandbox::Running running, co_await service_.run(box_, std::move(spec)));
    std::optional<Error> broken;
    for (;;) {
      auto piece = co_await ex_.read_some();
      if (!piece) {
        broken = std::move(piece).error();
        guest::Signal stop{running.info.pid, 9, guest::Target::session};
        (void)co_await call(Op::signal, stop);
        break;
      }
      if (piece->empty()) break;
      if (auto sent = co_await running.channel->write(*piece); !sent) break;  // tar has ended: see why below
    }
    running.channel->close_write();
    // To its end, also when it was killed: what is removed afterwards nobody may still be writing to.
    OutputOptions options;
    Shares::Share room = room_for_answer(running.box->project());
    ISOLA_CO_TRY(json result, co_await collect(service_, running, options, room));
    if (broken) co_return std::unexpected(std::move(*broken));
    if (result["exit_code"] == 0) co_return Result<void>();
    mark_untrusted(ex_);
    co_return std::unexpected(tar_error(result["stderr"].get<std::string>()));
  }

  // ---- into a folder that is there ----

  enum class Step { look, move };

  // `below` is "" or "/some/folder", in both trees.
  Task<Result<void>> join(std::string below, Step step) {
    bool more = true;
    for (int pass = 0; more; pass++) {
      if (pass == kMostPasses) co_return fail(Code::unavailable, "the folder is being filled while it is emptied");
      more = false;
      guest::List args{.path = beside_ + below, .user = user_};
      auto channel = link_->open(Op::list, guest::encode(args));
      for (;;) {
        auto frame = co_await channel->read_frame();
        if (!frame) break;
        std::vector<guest::Entry> entries;
        bool good =
            guest::each_record<guest::Entry>(*frame, [&](const guest::Entry& entry) { entries.push_back(entry); });
        if (!good) co_return fail(Code::corrupt, "the sandbox sent a malformed listing");
        // What was moved is listed no more: again, until nothing is left, however many there are.
        if (step == Step::move) more = true;
        ISOLA_CO_CHECK(co_await join_entries(below, entries, step));
      }
      ISOLA_CO_TRY(std::string end, co_await channel->end());
    }
    co_return Result<void>();
  }

  Task<Result<void>> join_entries(const std::string& below, const std::vector<guest::Entry>& entries, Step step) {
    // All questions at once: one answer after the other would be a wake-up each.
    std::vector<sandbox::ChannelPtr> asked;
    for (const auto& entry : entries) {
      guest::StatArgs args{in_place(below, entry), user_, true};
      asked.push_back(link_->open(Op::stat, guest::encode(args)));
    }
    std::vector<std::pair<std::string, sandbox::ChannelPtr>> moves;
    for (size_t i = 0; i < entries.size(); i++) {
      const guest::Entry& entry = entries[i];
      std::string inner = below + "/" + entry.path;
      auto reply = co_await asked[i]->end();
      bool folder = entry.stat.type == FileType::dir, folder_there = false, in_the_way = false;
      if (reply) {
        ISOLA_CO_TRY(guest::Stat stat, guest::decode<guest::Stat>(*reply));
        folder_there = stat.type == FileType::dir;
        in_the_way = folder ? !folder_there : folder_there && stat.target.empty();
      } else if (reply.error().code != Code::not_found) {
        co_return std::unexpected(std::move(reply).error());
      } else if (folder && step == Step::look) {
        ISOLA_CO_TRY(in_the_way, co_await is_there(in_place(below, entry)));  // a link that leads nowhere
      }
      if (in_the_way) {
        mark_untrusted(ex_);  // the name is of the archive, or of inside
        co_return fail(Code::exists, in_place(below, entry) + ": a file and a folder are in each other's way");
      }
      if (folder && folder_there) {
        ISOLA_CO_CHECK(co_await join(inner, step));
        if (step == Step::look) continue;
        guest::Remove empty{beside_ + inner, "", false};
        ISOLA_CO_TRY(std::string gone, co_await call(Op::remove, empty));
      } else if (step == Step::move) {
        guest::Rename args{beside_ + inner, in_place(below, entry), user_, true};
        moves.emplace_back(inner, link_->open(Op::rename, guest::encode(args)));
      }
    }
    for (auto& [inner, channel] : moves) {
      auto moved = co_await channel->end();
      if (!moved && moved.error().sys_errno == EXDEV) {
        ISOLA_CO_CHECK(co_await carry(inner));
      } else if (!moved) {
        co_return std::unexpected(std::move(moved).error());
      }
    }
    co_return Result<void>();
  }

  std::string in_place(const std::string& below, const guest::Entry& entry) const {
    return (path_ == "/" ? "" : path_) + below + "/" + entry.path;
  }

  // Where another disk is mounted below: copied, then removed.
  Task<Result<void>> carry(std::string inner) {
    sandbox::CommandSpec spec;
    spec.argv = {"mv", "-f", "-T", "--", beside_ + inner, (path_ == "/" ? "" : path_) + inner};
    spec.user = user_;
    spec.by = std::string(ex_.noted("key"));
    spec.counted = false;
    ISOLA_CO_TRY(sandbox::Running running, co_await service_.run(box_, std::move(spec)));
    OutputOptions options;
    Shares::Share room = room_for_answer(running.box->project());
    ISOLA_CO_TRY(json result, co_await collect(service_, running, options, room));
    if (result["exit_code"] == 0) co_return Result<void>();
    mark_untrusted(ex_);
    co_return fail(Code::invalid, "mv: " + log::quoted(result["stderr"].get<std::string>()));
  }

  sandbox::Service& service_;
  http::Exchange& ex_;
  BoxPtr box_;
  std::shared_ptr<sandbox::GuestLink> link_;
  std::string path_, user_, beside_;
  std::vector<std::string> made_;  // folders that were not there, the deepest first
};

}  // namespace

Error tar_error(const std::string& complaint) {
  auto says = [&](std::string_view words) { return complaint.find(words) != complaint.npos; };
  // A write that fits in part is all that tar says of a disk that is full.
  const int error = says("No space left") || says("Wrote only") ? ENOSPC : says("Disk quota") ? EDQUOT : 0;
  return {error ? Code::exhausted : Code::invalid, "tar: " + log::quoted(complaint), error};
}

Task<Result<void>> unpack(sandbox::Service& service, http::Exchange& ex, BoxPtr box,
                          std::shared_ptr<sandbox::GuestLink> link, std::string path, std::string user) {
  Unpacking unpacking(service, ex, box, link, std::move(path), std::move(user));
  auto worked = co_await unpacking.run();
  co_return worked;
}

}  // namespace isola::native
