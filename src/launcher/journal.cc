#include "launcher/journal.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "base/fd.h"
#include "base/file.h"
#include "base/ids.h"
#include "kernel/fault.h"

namespace isola::launcher {

namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ",") + name;
  return text.empty() ? "-" : text;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream in(text == "-" ? "" : text);
  for (std::string name; std::getline(in, name, ',');) names.push_back(name);
  return names;
}

std::vector<std::string> to_words(const std::vector<JournalEntry::Volume>& volumes) {
  std::vector<std::string> words;
  for (const auto& volume : volumes) words.push_back(volume.id + ":" + volume.target);
  return words;
}

std::vector<JournalEntry::Volume> to_volumes(const std::vector<std::string>& words) {
  std::vector<JournalEntry::Volume> volumes;
  for (const auto& word : words) {
    size_t colon = std::min(word.find(':'), word.size());
    volumes.push_back({word.substr(0, colon), colon < word.size() ? word.substr(colon + 1) : ""});
  }
  return volumes;
}

std::string or_dash(const std::string& word) { return word.empty() ? "-" : word; }
std::string from_dash(const std::string& word) { return word == "-" ? "" : word; }

// One line of words: simple enough to be read by `cat`.
std::string to_line(const JournalEntry& e, const std::string& boot) {
  return fmt::format("7 {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}{}\n", e.id, e.id_base, e.digest,
                     e.process.pid, e.process.start_time, static_cast<int>(e.birth), static_cast<int>(e.parked),
                     static_cast<int>(e.ephemeral), static_cast<int>(e.roots_own), e.created, e.deadline, boot,
                     or_dash(e.layer), or_dash(e.image), static_cast<int>(e.shown), joined(e.lowers),
                     joined(to_words(e.volumes)), to_string(e.kind), or_dash(e.handle), e.life,
                     e.frozen ? " frozen" : "");
}

bool from_line(const std::string& text, JournalEntry& e) {
  std::istringstream in(text);
  int version = 0, birth = 0, parked = 0, ephemeral = 0, roots_own = 0, shown = 0;
  in >> version >> e.id >> e.id_base >> e.digest >> e.process.pid >> e.process.start_time >> birth >> parked >>
      ephemeral >> roots_own >> e.created >> e.deadline >> e.boot;
  e.birth = static_cast<Birth>(birth);
  e.parked = parked != 0;
  e.ephemeral = ephemeral != 0;
  e.roots_own = roots_own != 0;
  if (!in || birth < 0 || birth > static_cast<int>(Birth::forked)) return false;
  if (version == 3) return true;  // before there were images
  std::string lowers;
  in >> e.layer >> e.image >> shown >> lowers;
  e.layer = from_dash(e.layer);
  e.image = from_dash(e.image);
  e.shown = shown != 0;
  e.lowers = split(lowers);
  if (version == 4) return static_cast<bool>(in);  // before there were volumes
  std::string volumes;
  in >> volumes;
  e.volumes = to_volumes(split(volumes));
  if (version == 5) return static_cast<bool>(in);  // before there was more than one boundary
  std::string kind;
  in >> kind >> e.handle;
  e.handle = from_dash(e.handle);
  auto known = parse_boundary(kind);
  e.kind = known.value_or(BoundaryKind::jail);
  if (version == 7) in >> e.life;  // before, there were no lives
  const bool whole = in && known && (version == 6 || version == 7) && text.ends_with('\n');
  // A word more or none. That none was cut off, the line's end says.
  std::string frozen;
  e.frozen = in >> frozen && frozen == "frozen";
  return whole;
}

}  // namespace

Result<Journal> Journal::open(const std::string& folder) {
  Journal journal;
  ISOLA_TRY(journal.files_, NameFiles::open(folder, 0700));
  ISOLA_TRY(std::string boot, read_file("/proc/sys/kernel/random/boot_id"));
  journal.boot_ = boot.substr(0, boot.find('\n'));
  return journal;
}

// An entry that is there is written in place, in one write of always the same length: whoever is killed before or after
// it leaves a whole entry. Renaming a new file over the old one would be the usual way, but makes ext4 put the data on
// disk first (milliseconds). It is the way of the few entries that are longer than a page: a kill is noticed between
// two pages, and would leave the beginning of one entry with the end of another.
Result<void> Journal::write(const JournalEntry& entry) {
  if (int e = kernel::fault::at("journal")) return sys_error("cannot write the journal", e);
  constexpr size_t kPage = 4096, kLongest = 8192;
  std::string line = to_line(entry, boot_);
  if (line.size() > kLongest) return fail(Code::internal, "a journal entry is too long");
  const bool fits = line.size() <= kPage;
  line.insert(line.size() - 1, (fits ? kPage : kLongest) - line.size(), ' ');
  Fd file(::open((files_.folder() + "/" + entry.id).c_str(), O_WRONLY | O_CLOEXEC));
  if (!file && errno == ENOENT) return files_.add(entry.id, line);
  struct stat there{};
  if (!file || ::fstat(file.get(), &there) < 0) return sys_error("cannot write the journal");
  if (!fits || there.st_size != kPage) return files_.replace(entry.id, line);
  ssize_t n = ::pwrite(file.get(), line.data(), line.size(), 0);
  if (n != static_cast<ssize_t>(line.size())) return sys_error("cannot write the journal", n < 0 ? errno : ENOSPC);
  return {};
}

void Journal::erase(const std::string& id) { files_.remove(id); }

Result<std::vector<JournalEntry>> Journal::read_all() const {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(files_.folder().c_str()), ::closedir);
  if (!dir) return sys_error("cannot read the journal in " + files_.folder());
  std::vector<JournalEntry> all;
  while (dirent* file = ::readdir(dir.get())) {
    std::string name = file->d_name;
    if (!is_sandbox_id(name)) continue;
    JournalEntry entry;
    auto text = read_file(files_.folder() + "/" + name);
    if (!text || !from_line(*text, entry) || entry.id != name) entry = JournalEntry{.id = name};
    all.push_back(entry);
  }
  return all;
}

}  // namespace isola::launcher
