// Names, and where they are.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "../topics.h"

namespace isola::behaviour {
namespace {

constexpr Check kFolderChecks[] = {
    {"dir-each-once", "a folder of 1000 files lists each of them once",
     [] {
       for (int i = 0; i < 1000; ++i)
         if (!spill("name-" + std::to_string(i), "")) return failed("open");
       std::set<std::string> names;
       int count = 0;
       DIR* folder = ::opendir(".");
       while (dirent* entry = ::readdir(folder)) names.insert(entry->d_name), ++count;
       WANT(count == 1002 && names.size() == 1002, "some are missing or come twice");
       return ok();
     }},
    {"dir-seek", "telldir and seekdir come back to the same name",
     [] {
       for (int i = 0; i < 50; ++i) spill("name-" + std::to_string(i), "");
       DIR* folder = ::opendir(".");
       for (int i = 0; i < 20; ++i) ::readdir(folder);
       long place = ::telldir(folder);
       std::string name = ::readdir(folder)->d_name;
       for (int i = 0; i < 10; ++i) ::readdir(folder);
       ::seekdir(folder, place);
       dirent* again = ::readdir(folder);
       WANT(again && name == again->d_name, "another name");
       return ok();
     }},
    {"dir-types", "entries say what they are, with the inode that stat gives",
     [] {
       ::mkdir("folder", 0755);
       spill("file", "");
       NEED("symlink", ::symlink("x", "link"));
       NEED("mkfifo", ::mkfifo("fifo", 0644));
       int right = 0;
       DIR* folder = ::opendir(".");
       while (dirent* entry = ::readdir(folder)) {
         struct stat s{};
         ::lstat(entry->d_name, &s);
         std::string name = entry->d_name;
         int type = name == "folder" ? DT_DIR : name == "file" ? DT_REG : name == "link" ? DT_LNK : DT_FIFO;
         if (name[0] != '.' && entry->d_type == type && entry->d_ino == s.st_ino) ++right;
       }
       WANT(right == 4, "types or inodes are not those of stat");
       return ok();
     }},
    {"dir-remove-while-reading", "files can be removed while the folder is read",
     [] {
       for (int i = 0; i < 300; ++i) spill("name-" + std::to_string(i), "");
       DIR* folder = ::opendir(".");
       while (dirent* entry = ::readdir(folder))
         if (entry->d_name[0] != '.') ::unlink(entry->d_name);
       NEED("chdir", ::chdir(".."));
       ::rewinddir(folder);
       int left = 0;
       while (::readdir(folder)) ++left;
       WANT(left == 2, "some were never listed");
       return ok();
     }},
    {"dir-not-empty", "rmdir refuses a folder with something in it",
     [] {
       ::mkdir("d", 0755);
       spill("d/file", "");
       REFUSED("rmdir", ::rmdir("d"), ENOTEMPTY);
       REFUSED("unlink", ::unlink("d"), EISDIR);
       return ok();
     }},
    {"dir-not-a-folder", "O_DIRECTORY refuses a file, and a file has no names below",
     [] {
       spill("file", "");
       REFUSED("open", ::open("file", O_RDONLY | O_DIRECTORY), ENOTDIR);
       REFUSED("open", ::open("file/x", O_RDONLY), ENOTDIR);
       return ok();
     }},
    {"dir-long-name", "255 bytes are a name, 256 are not",
     [] {
       std::string name(255, 'n');
       NEED("open", ::open(name.c_str(), O_CREAT | O_WRONLY, 0644));
       REFUSED("open", ::open((name + "n").c_str(), O_CREAT | O_WRONLY, 0644), ENAMETOOLONG);
       return ok();
     }},
    {"dir-any-bytes", "a name may hold any byte but / and zero",
     [] {
       std::string name = "a\nb\xff\x01 \"'\\";
       NEED("open", ::open(name.c_str(), O_CREAT | O_WRONLY, 0644));
       DIR* folder = ::opendir(".");
       bool seen = false;
       while (dirent* entry = ::readdir(folder)) seen |= name == entry->d_name;
       WANT(seen, "it is listed under another name");
       return ok();
     }},
    {"dir-case", "names differ by case",
     [] {
       spill("Name", "1");
       spill("name", "2");
       WANT(slurp("Name") == "1" && slurp("name") == "2", "they are one");
       return ok();
     }},
    {"dir-renamed-while-open", "an open folder keeps its files when it is renamed",
     [] {
       ::mkdir("a", 0755);
       int folder = ::open("a", O_RDONLY | O_DIRECTORY);
       spill("a/file", "x");
       NEED("rename", ::rename("a", "b"));
       NEED("openat", ::openat(folder, "file", O_RDONLY));
       NEED("openat", ::openat(folder, "new", O_CREAT | O_WRONLY, 0644));
       WANT(::access("b/new", F_OK) == 0, "the new file is elsewhere");
       return ok();
     }},
    {"dir-rename-folder", "a folder with files can be renamed, also over an empty one, not into itself",
     [] {
       ::mkdir("a", 0755);
       ::mkdir("empty", 0755);
       spill("a/file", "x");
       NEED("rename", ::rename("a", "empty"));
       WANT(slurp("empty/file") == "x", "its file is gone");
       REFUSED("rename", ::rename("empty", "empty/inner"), EINVAL);
       return ok();
     }},
    {"dir-removed-cwd", "a working folder that was removed has no name",
     [] {
       ::mkdir("d", 0755);
       NEED("chdir", ::chdir("d"));
       NEED("rmdir", ::rmdir("../d"));
       char name[PATH_MAX];
       REFUSED("getcwd", ::getcwd(name, sizeof name) ? 0 : -1, ENOENT);
       REFUSED("open", ::open("file", O_CREAT | O_WRONLY, 0644), ENOENT);
       return ok();
     }},
    {"dir-links-count", "a folder counts its sub-folders as links",
     [] {
       ::mkdir("d", 0755);
       ::mkdir("d/a", 0755);
       ::mkdir("d/b", 0755);
       struct stat s{};
       NEED("stat", ::stat("d", &s));
       // Overlays and some others always say 1, which is allowed: tools take it for "unknown".
       WANT(s.st_nlink == 4 || s.st_nlink == 1, "neither 4 nor 1");
       return ok();
     }},
    {"dir-time-changes", "a new file changes the time of its folder",
     [] {
       ::mkdir("d", 0755);
       timespec old[2] = {{1, 0}, {1, 0}};
       NEED("utimensat", ::utimensat(AT_FDCWD, "d", old, 0));
       spill("d/file", "");
       struct stat s{};
       NEED("stat", ::stat("d", &s));
       WANT(s.st_mtim.tv_sec > 1, "the time is the old one");
       return ok();
     }},
    {"dir-fifo", "a named pipe without a reader refuses a writer that does not wait",
     [] {
       NEED("mkfifo", ::mkfifo("fifo", 0644));
       REFUSED("open", ::open("fifo", O_WRONLY | O_NONBLOCK), ENXIO);
       int in = ::open("fifo", O_RDONLY | O_NONBLOCK), out = ::open("fifo", O_WRONLY);
       NEED("write", ::write(out, "x", 1));
       char c;
       WANT(::read(in, &c, 1) == 1, "nothing came through");
       return ok();
     }},
    {"dir-dot-dot", "the parent of / is /",
     [] {
       struct stat a{}, b{};
       NEED("stat", ::stat("/", &a));
       NEED("stat", ::stat("/..", &b));
       WANT(a.st_ino == b.st_ino && a.st_dev == b.st_dev, "another folder");
       return ok();
     }},
    {"dir-deep", "a path may be 4095 bytes long, and by openat as deep as one likes",
     [] {
       std::string name(200, 'd');
       for (int i = 0; i < 40; ++i) {
         NEED("mkdir", ::mkdir(name.c_str(), 0755));
         NEED("chdir", ::chdir(name.c_str()));
       }
       NEED("open", ::open("file", O_CREAT | O_WRONLY, 0644));
       // So that whoever clears up can walk it.
       ::unlink("file");
       for (int i = 0; i < 40; ++i) {
         NEED("chdir", ::chdir(".."));
         NEED("rmdir", ::rmdir(name.c_str()));
       }
       return ok();
     }},
};

}  // namespace

Checks folder_checks() { return kFolderChecks; }

}  // namespace isola::behaviour
