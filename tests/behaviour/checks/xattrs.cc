#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

int set(const char* name, const std::string& value, int flags = 0) {
  return ::setxattr("file", name, value.data(), value.size(), flags);
}
std::string get(const char* name) {
  char value[8192];
  ssize_t n = ::getxattr("file", name, value, sizeof value);
  return n < 0 ? errno_name(errno) : std::string(value, static_cast<size_t>(n));
}

constexpr Check kXattrChecks[] = {
    {"xattr-user", "user attributes are set, read, listed and removed",
     [] {
       scratch_file();
       NEED("setxattr", set("user.colour", "green"));
       WANT(get("user.colour") == "green", "another value");
       char names[256];
       ssize_t n = ::listxattr("file", names, sizeof names);
       NEED("listxattr", n);
       WANT(std::string(names, static_cast<size_t>(n)).find("user.colour") != std::string::npos, "it is not listed");
       NEED("removexattr", ::removexattr("file", "user.colour"));
       WANT(get("user.colour") == "ENODATA", "it is still there");
       return ok();
     }},
    {"xattr-flags", "XATTR_CREATE and XATTR_REPLACE are kept to",
     [] {
       scratch_file();
       REFUSED("setxattr", set("user.a", "1", XATTR_REPLACE), ENODATA);
       NEED("setxattr", set("user.a", "1", XATTR_CREATE));
       REFUSED("setxattr", set("user.a", "2", XATTR_CREATE), EEXIST);
       return ok();
     }},
    {"xattr-sizes", "a size of 0 asks for the length, one that is too small is refused",
     [] {
       scratch_file();
       NEED("setxattr", set("user.a", "12345"));
       WANT(::getxattr("file", "user.a", nullptr, 0) == 5, "another length");
       char small[2];
       REFUSED("getxattr", ::getxattr("file", "user.a", small, 2), ERANGE);
       return ok();
     }},
    {"xattr-descriptor", "attributes of an open file",
     [] {
       int fd = scratch_file();
       NEED("fsetxattr", ::fsetxattr(fd, "user.a", "1", 1, 0));
       char c;
       WANT(::fgetxattr(fd, "user.a", &c, 1) == 1 && c == '1', "another value");
       return ok();
     }},
    {"xattr-folder", "folders have attributes, too",
     [] {
       ::mkdir("file", 0755);
       NEED("setxattr", set("user.a", "1"));
       WANT(get("user.a") == "1", "another value");
       return ok();
     }},
    {"xattr-symlink", "symlinks have no user attributes",
     [] {
       NEED("symlink", ::symlink("x", "link"));
       REFUSED("lsetxattr", ::lsetxattr("link", "user.a", "1", 1, 0), EPERM);
       return ok();
     }},
    {"xattr-unknown", "a name without a known beginning is refused",
     [] {
       scratch_file();
       REFUSED("setxattr", set("nonsense.a", "1"), EOPNOTSUPP);
       return ok();
     }},
    {"xattr-trusted", "root sets trusted attributes",
     [] {
       scratch_file();
       NEED("setxattr", set("trusted.a", "1"));
       WANT(get("trusted.a") == "1", "another value");
       return ok();
     }},
    {"xattr-capability", "root gives a program file capabilities",
     [] {
       scratch_file();
       const unsigned char net_bind[20] = {1, 0, 0, 2, 0, 4};  // version 2, effective; CAP_NET_BIND_SERVICE
       NEED("setxattr", ::setxattr("file", "security.capability", net_bind, sizeof net_bind, 0));
       char value[64];
       WANT(::getxattr("file", "security.capability", value, sizeof value) >= 20, "it is not there");
       return ok();
     }},
    {"xattr-acl", "an access list gives a second user rights",
     [] {
       scratch_file("x");
       NEED("chmod", ::chmod("file", 0600));
       struct Entry {
         uint16_t tag, rights;
         uint32_t id;
       };
       struct {
         uint32_t version = 2;
         Entry entries[5] = {{1, 6, ~0u}, {2, 4, 12345}, {4, 0, ~0u}, {16, 4, ~0u}, {32, 0, ~0u}};
       } list;
       NEED("setxattr", ::setxattr("file", "system.posix_acl_access", &list, sizeof list, 0));
       int code = in_child([] {
         if (::setuid(12345) < 0) return 100;
         return ::open("file", O_RDONLY) < 0 ? errno : 0;
       });
       WANT(code == 0, "that user may not read");
       return ok();
     }},
    {"file-flags", "FS_IOC_GETFLAGS answers",
     [] {
       int flags = 0;
       NEED("FS_IOC_GETFLAGS", ::ioctl(scratch_file(), FS_IOC_GETFLAGS, &flags));
       return ok();
     }},
};

}  // namespace

Checks xattr_checks() { return kXattrChecks; }

}  // namespace isola::behaviour
