#include "launcher/event_spool.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/codec.h"
#include "base/file.h"
#include "base/log.h"

namespace isola::launcher {

namespace {

constexpr size_t kMostRecord = 256 << 10;
constexpr size_t kMostCounted = 10'000;  // sandboxes whose losses are told one by one
constexpr char kAcknowledged[] = "acknowledged";

// One record: how long the rest is, its number, the event.
std::optional<EventSpool::Numbered> read_record(int fd, size_t at, size_t& size) {
  uint32_t length = 0;
  if (::pread(fd, &length, sizeof length, static_cast<off_t>(at)) != sizeof length || length > kMostRecord)
    return std::nullopt;
  std::string bytes(length, '\0');
  if (::pread(fd, bytes.data(), length, static_cast<off_t>(at + sizeof length)) != static_cast<ssize_t>(length))
    return std::nullopt;
  Reader in(bytes);
  EventSpool::Numbered out;
  out.number = in.u64();
  decode(in, out.event);
  if (!in.done()) return std::nullopt;
  size = sizeof length + length;
  return out;
}

}  // namespace

std::string EventSpool::path_of(uint64_t first) const { return options_.folder + "/" + std::to_string(first); }

Result<void> EventSpool::open(bool create) {
  if (begun_) return {};
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(options_.folder.c_str()), ::closedir);
  if (!folder && errno != ENOENT) return sys_error("cannot read " + options_.folder);
  if (!folder && !create) return {};
  ISOLA_CHECK(make_dirs(options_.folder, 0700));
  std::string path = options_.folder + "/" + kAcknowledged;
  acknowledgements_ = Fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!acknowledgements_) return sys_error("cannot open " + path);
  uint64_t known = 0;
  if (::pread(acknowledgements_.get(), &known, sizeof known, 0) == sizeof known) acknowledged_ = known;
  std::vector<uint64_t> found;
  while (const dirent* one = folder ? ::readdir(folder.get()) : nullptr)
    if (uint64_t first = std::strtoull(one->d_name, nullptr, 10)) found.push_back(first);
  std::ranges::sort(found);
  next_ = std::max<uint64_t>({acknowledged_ + 1, next_, static_cast<uint64_t>(milliseconds_now()) * 1000});
  for (uint64_t first : found) ISOLA_CHECK(read_segment(first));
  begun_ = true;
  drop_acknowledged();
  rewind();
  return {};
}

// What a killed one did not finish writing is its last record, and nobody writes behind it.
Result<void> EventSpool::read_segment(uint64_t first) {
  Fd fd(::open(path_of(first).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path_of(first));
  auto& segment = segments_.emplace_back(Segment{.first = first, .last = first - 1});
  size_t size = 0;
  while (auto record = read_record(fd.get(), segment.size, size)) {
    segment.last = record->number;
    count(segment, record->event.sandbox, size);
  }
  next_ = std::max(next_, segment.last + 1);
  return {};
}

void EventSpool::count(Segment& segment, const std::string& sandbox, size_t size) {
  segment.size += size;
  segment.of[sandbox] += size;
  of_[sandbox] += size;
  bytes_ += size;
}

bool EventSpool::has_room(const std::string& sandbox, size_t size) const {
  if (bytes_ + size > options_.most) return false;
  auto known = of_.find(sandbox);
  return sandbox.empty() || known == of_.end() || known->second + size <= options_.of_one;
}

Result<void> EventSpool::begin_segment() {
  std::string path = path_of(next_);
  writing_ = Fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!writing_) return sys_error("cannot open " + path);
  segments_.push_back({.first = next_, .last = next_ - 1});
  return {};
}

Result<void> EventSpool::write(const gate::Event& event) {
  if (!writing_ || segments_.back().size >= options_.segment) ISOLA_CHECK(begin_segment());
  Writer body;
  body.u64(next_);
  encode(body, event);
  Writer out;
  out.str(body.data());
  auto& segment = segments_.back();
  auto wrote = ::pwrite(writing_.get(), out.data().data(), out.data().size(), static_cast<off_t>(segment.size));
  if (wrote != static_cast<ssize_t>(out.data().size())) {
    auto error = sys_error("cannot keep what the gate told");
    (void)::ftruncate(writing_.get(), static_cast<off_t>(segment.size));  // no half of one
    return error;
  }
  segment.last = next_++;
  count(segment, event.sandbox, out.data().size());
  return {};
}

void EventSpool::append(const gate::Event& event) {
  if (!begun_) return;
  tell_lost();
  Writer measured;
  encode(measured, event);
  const bool room = has_room(event.sandbox, measured.data().size() + 12);
  if (room) {
    auto written = write(event);
    if (written) return;
    log::error("launcher", "{}", written.error().message);
  }
  // The counts are in memory alone: that there are some is written at once, so that whoever dies leaves that word.
  if (lost_.empty()) (void)write({.kind = gate::Event::Kind::lost, .count = 0, .when = milliseconds_now()});
  const bool known = lost_.contains(event.sandbox) || lost_.size() < kMostCounted;
  lost_[known ? event.sandbox : std::string()].add(event);
}

void EventSpool::tell_lost() {
  for (auto it = lost_.begin(); it != lost_.end();) {
    gate::Lost copy = it->second;
    const gate::Event event = copy.take(it->first);
    if (!has_room(it->first, 256) || !write(event)) return;
    it = lost_.erase(it);
  }
}

std::optional<EventSpool::Numbered> EventSpool::next() {
  for (;;) {
    auto segment = std::ranges::find_if(segments_, [&](const auto& one) { return one.last > given_; });
    if (segment == segments_.end()) return std::nullopt;
    if (reading_ != segment->first || !read_) {
      read_ = Fd(::open(path_of(segment->first).c_str(), O_RDONLY | O_CLOEXEC));
      if (!read_) {
        log::error("launcher", "records of the gate are gone: {}", path_of(segment->first));
        given_ = segment->last;
        continue;
      }
      reading_ = segment->first, at_ = 0;
    }
    size_t size = 0;
    auto record = at_ < segment->size ? read_record(read_.get(), at_, size) : std::nullopt;
    if (!record) {  // somebody else wrote to it
      given_ = segment->last;
      continue;
    }
    at_ += size;
    if (record->number <= given_) continue;
    given_ = record->number;
    return record;
  }
}

void EventSpool::rewind() {
  given_ = acknowledged_;
  read_.reset();
}

void EventSpool::acknowledge(uint64_t number) {
  number = std::min(number, next_ - 1);
  if (!begun_ || number <= acknowledged_) return;
  acknowledged_ = number;
  given_ = std::max(given_, number);
  // Lost with the machine it only means that some are told twice.
  if (::pwrite(acknowledgements_.get(), &acknowledged_, sizeof acknowledged_, 0) < 0)
    log::warn("launcher", "cannot note which records are in the ledger");
  drop_acknowledged();
  if (!lost_.empty()) tell_lost();
}

// A file that is still written to goes when it is full: most of the time there is one, and it is small.
void EventSpool::drop_acknowledged() {
  while (!segments_.empty() && segments_.front().last <= acknowledged_) {
    Segment& segment = segments_.front();
    if (segments_.size() == 1 && writing_) {
      if (segment.size < options_.segment) return;
      writing_.reset();
    }
    ::unlink(path_of(segment.first).c_str());
    for (const auto& [sandbox, size] : segment.of) {
      bytes_ -= size;
      auto known = of_.find(sandbox);
      if ((known->second -= size) == 0) of_.erase(known);
    }
    segments_.pop_front();
  }
}

void EventSpool::skip_to(uint64_t number) {
  if (number < next_) return;
  next_ = number + 1;
  writing_.reset();
  append({.kind = gate::Event::Kind::restarted, .when = milliseconds_now()});
}

}  // namespace isola::launcher
