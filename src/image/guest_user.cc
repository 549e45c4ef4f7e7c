#include "image/guest_user.h"

#include <string>

#include "image/recipes.h"

namespace isola::image {

namespace {

Result<void> add_line(const RootTree& root, const std::string& file, const std::string& line, int mode) {
  if (root.exists(file)) {
    ISOLA_TRY(std::string text, root.read(file));
    return root.append(file, (text.empty() || text.ends_with('\n') ? "" : "\n") + line);
  }
  return root.write(file, line, mode);
}

bool is_known(const RootTree& root, const std::string& name) {
  auto text = root.read("/etc/passwd");
  return text && (text->starts_with(name + ":") || text->find("\n" + name + ":") != std::string::npos);
}

}  // namespace

Result<void> add_guest_user(const RootTree& root) {
  const std::string user(kGuestUser), id = std::to_string(kGuestUid), home = "/home/" + user;
  if (is_known(root, user)) return {};
  if (!root.exists("/etc")) ISOLA_CHECK(root.folder_at("/etc", 0755));
  const std::string shell = root.exists("/bin/bash") ? "/bin/bash" : "/bin/sh";
  if (!root.exists("/etc/passwd")) ISOLA_CHECK(root.write("/etc/passwd", "root:x:0:0:root:/root:" + shell + "\n"));
  if (!root.exists("/etc/group")) ISOLA_CHECK(root.write("/etc/group", "root:x:0:\n"));
  ISOLA_CHECK(add_line(root, "/etc/passwd", user + ":x:" + id + ":" + id + "::" + home + ":" + shell + "\n", 0644));
  ISOLA_CHECK(add_line(root, "/etc/group", user + ":x:" + id + ":\n", 0644));
  // Password logins are off ("*"); the day of the last change is fixed, so that equal inputs give equal templates.
  if (root.exists("/etc/shadow")) ISOLA_CHECK(add_line(root, "/etc/shadow", user + ":*:19000:0:99999:7:::\n", 0640));
  if (root.exists("/etc/gshadow")) ISOLA_CHECK(add_line(root, "/etc/gshadow", user + ":!::\n", 0640));
  if (!root.exists("/home")) ISOLA_CHECK(root.folder_at("/home", 0755));
  ISOLA_CHECK(root.folder_at(home, 0755, kGuestUid));
  for (const char* file : {"/.bashrc", "/.profile", "/.bash_logout"})
    if (auto text = root.read(std::string("/etc/skel") + file))
      ISOLA_CHECK(root.write(home + file, *text, 0644, kGuestUid));
  if (!root.exists("/usr/bin/sudo")) return {};
  ISOLA_CHECK(root.folder_at("/etc/sudoers.d", 0750));
  // Without that variable, programs of two forks would draw the same random numbers (docs/images.md).
  return root.write("/etc/sudoers.d/" + user,
                    "Defaults env_keep += \"OPENSSL_CONF\"\n" + user + " ALL=(ALL:ALL) NOPASSWD: ALL\n", 0440);
}

}  // namespace isola::image
