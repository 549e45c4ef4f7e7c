#include <fcntl.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "../topics.h"

namespace isola::behaviour {
namespace {

struct Event {
  uint32_t mask, cookie;
  int watch;
  std::string name;
};
// What came until nothing comes any more.
std::vector<Event> events(int fd) {
  std::vector<Event> all;
  alignas(inotify_event) char buffer[65536];
  while (readable(fd, all.empty() ? 5000 : 100)) {
    ssize_t n = ::read(fd, buffer, sizeof buffer);
    for (ssize_t at = 0; at < n;) {
      auto* one = reinterpret_cast<inotify_event*>(buffer + at);
      all.push_back({one->mask, one->cookie, one->wd, one->len ? one->name : ""});
      at += static_cast<ssize_t>(sizeof *one + one->len);
    }
  }
  return all;
}
bool has(const std::vector<Event>& all, uint32_t mask, const std::string& name) {
  for (const Event& one : all)
    if (one.mask == mask && one.name == name) return true;
  return false;
}
int watching(uint32_t mask, const char* what = ".") {
  int fd = ::inotify_init1(IN_CLOEXEC);
  return fd >= 0 && ::inotify_add_watch(fd, what, mask) < 0 ? -1 : fd;
}

constexpr Check kInotifyChecks[] = {
    {"inotify-life", "creating, writing, closing and deleting a file are told in order",
     [] {
       int fd = watching(IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE);
       NEED("inotify", fd);
       spill("file", "abc");
       ::unlink("file");
       auto all = events(fd);
       const uint32_t wanted[] = {IN_CREATE, IN_MODIFY, IN_CLOSE_WRITE, IN_DELETE};
       WANT(all.size() == 4, std::to_string(all.size()) + " events instead of 4");
       for (int i = 0; i < 4; ++i) WANT(all[static_cast<size_t>(i)].mask == wanted[i], "another order");
       return ok();
     }},
    {"inotify-move", "the two halves of a rename have one cookie",
     [] {
       spill("a", "");
       int fd = watching(IN_MOVE);
       NEED("inotify", fd);
       NEED("rename", ::rename("a", "b"));
       auto all = events(fd);
       WANT(all.size() == 2 && all[0].mask == IN_MOVED_FROM && all[1].mask == IN_MOVED_TO, "other events");
       WANT(all[0].cookie == all[1].cookie && all[0].cookie != 0 && all[1].name == "b", "two cookies");
       return ok();
     }},
    {"inotify-other-process", "what another process does is told",
     [] {
       int fd = watching(IN_CREATE);
       NEED("inotify", fd);
       in_child([] { return spill("made-by-a-child", "") ? 0 : 1; });
       WANT(has(events(fd), IN_CREATE, "made-by-a-child"), "it is not");
       return ok();
     }},
    {"inotify-folder", "a new folder is told as a folder",
     [] {
       int fd = watching(IN_CREATE);
       NEED("inotify", fd);
       ::mkdir("d", 0755);
       WANT(has(events(fd), IN_CREATE | IN_ISDIR, "d"), "it is not");
       return ok();
     }},
    {"inotify-not-below", "what happens in folders below is not told",
     [] {
       ::mkdir("d", 0755);
       int fd = watching(IN_CREATE);
       NEED("inotify", fd);
       spill("d/file", "");
       spill("last", "");
       auto all = events(fd);
       WANT(all.size() == 1 && all[0].name == "last", "it is");
       return ok();
     }},
    {"inotify-attributes", "a change of mode or time is told",
     [] {
       spill("file", "");
       int fd = watching(IN_ATTRIB);
       NEED("inotify", fd);
       NEED("chmod", ::chmod("file", 0600));
       WANT(has(events(fd), IN_ATTRIB, "file"), "it is not");
       return ok();
     }},
    {"inotify-self", "a watched file that is deleted says so, and that the watch is gone",
     [] {
       spill("file", "");
       int fd = watching(IN_DELETE_SELF, "file");
       NEED("inotify", fd);
       ::unlink("file");
       auto all = events(fd);
       WANT(has(all, IN_DELETE_SELF, "") && has(all, IN_IGNORED, ""), "other events");
       return ok();
     }},
    {"inotify-remove", "a watch that is taken away says IN_IGNORED and no more",
     [] {
       int fd = ::inotify_init1(0), watch = ::inotify_add_watch(fd, ".", IN_CREATE);
       NEED("inotify", watch);
       NEED("inotify_rm_watch", ::inotify_rm_watch(fd, watch));
       spill("file", "");
       auto all = events(fd);
       WANT(all.size() == 1 && all[0].mask == IN_IGNORED, "other events");
       REFUSED("inotify_rm_watch", ::inotify_rm_watch(fd, watch), EINVAL);
       return ok();
     }},
    {"inotify-once", "IN_ONESHOT tells one event",
     [] {
       int fd = watching(IN_CREATE | IN_ONESHOT);
       NEED("inotify", fd);
       spill("a", "");
       spill("b", "");
       auto all = events(fd);
       WANT(all.size() == 2 && all[0].name == "a" && (all[1].mask & IN_IGNORED), "other events");
       return ok();
     }},
    {"inotify-only-folders", "IN_ONLYDIR refuses a file",
     [] {
       spill("file", "");
       REFUSED("inotify_add_watch", watching(IN_CREATE | IN_ONLYDIR, "file"), ENOTDIR);
       return ok();
     }},
    {"inotify-links", "a new symlink and a new hard link are told",
     [] {
       spill("file", "");
       int fd = watching(IN_CREATE);
       NEED("inotify", fd);
       NEED("symlink", ::symlink("file", "soft"));
       NEED("link", ::link("file", "hard"));
       auto all = events(fd);
       WANT(has(all, IN_CREATE, "soft") && has(all, IN_CREATE, "hard"), "one is missing");
       return ok();
     }},
    {"inotify-reads", "opening, reading and closing are told",
     [] {
       spill("file", "abc");
       int fd = watching(IN_OPEN | IN_ACCESS | IN_CLOSE_NOWRITE);
       NEED("inotify", fd);
       slurp("file");
       auto all = events(fd);
       WANT(has(all, IN_OPEN, "file") && has(all, IN_ACCESS, "file") && has(all, IN_CLOSE_NOWRITE, "file"),
            "one is missing");
       return ok();
     }},
    {"inotify-many", "a thousand watches fit",
     [] {
       int fd = ::inotify_init1(0);
       NEED("inotify_init1", fd);
       for (int i = 0; i < 1000; ++i) {
         std::string name = "d" + std::to_string(i);
         ::mkdir(name.c_str(), 0755);
         NEED("inotify_add_watch", ::inotify_add_watch(fd, name.c_str(), IN_CREATE));
       }
       return ok();
     }},
    {"fanotify", "root may watch a mount by fanotify",
     [] {
       int fd = ::fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY);
       NEED("fanotify_init", fd);
       NEED("fanotify_mark", ::fanotify_mark(fd, FAN_MARK_ADD, FAN_CREATE | FAN_ONDIR, AT_FDCWD, "."));
       return ok();
     }},
};

}  // namespace

Checks inotify_checks() { return kInotifyChecks; }

}  // namespace isola::behaviour
