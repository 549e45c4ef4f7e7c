#include "image/rootfs.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "image/guest_user.h"
#include "image/interpreter_files.h"
#include "image/node_runtime.h"
#include "image/profile.h"
#include "image/python_packages.h"
#include "image/root_tree.h"
#include "image/spawn.h"

namespace isola::image {

namespace {

Result<void> install_packages(const BuildPlace& place, const Recipe& recipe, const HostSources& host,
                              const Reporter& report) {
  std::string list = place.folder + "/host.sources";
  ISOLA_CHECK(replace_file(list, to_deb822(host.sources, false), 0600));
  std::string include;
  for (const auto& package : recipe.packages) include += (include.empty() ? "" : ",") + package;
  std::vector<std::string> argv = {"mmdebstrap",         "--mode=root", "--variant=apt",
                                   "--format=directory", "--verbose",   "--include=" + include};
  // Lays /usr out merged from the start where the release wants that; else the usrmerge package does it afterwards and
  // drags all of Perl in.
  if (std::string hooks = "/usr/share/mmdebstrap/hooks/maybe-merged-usr"; ::access(hooks.c_str(), F_OK) == 0)
    argv.push_back("--hook-dir=" + hooks);
  // In a file: a proxy may come with a password, and everybody can read the words of a command.
  std::string options = place.folder + "/apt.conf", lines;
  for (const auto& option : host.apt_options) lines += option + (option.ends_with(';') ? "\n" : ";\n");
  ISOLA_CHECK(replace_file(options, lines, 0600));
  if (!lines.empty()) argv.push_back("--aptopt=" + options);
  argv.push_back("--aptopt=Acquire::Languages \"none\"");
  argv.push_back("--aptopt=APT::Install-Recommends \"false\"");
  if (!recipe.manuals) {
    for (const char* path : {"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*"})
      argv.push_back(std::string("--dpkgopt=path-exclude=") + path);
    argv.push_back("--dpkgopt=path-include=/usr/share/doc/*/copyright");
    argv.push_back("--dpkgopt=path-include=/usr/share/locale/locale.alias");
    // Packages that register alternatives (Java) fail where the folder of the manual page would be missing.
    argv.push_back("--setup-hook=mkdir -p \"$1/usr/share/man/man1\"");
  }
  argv.insert(argv.end(), {host.distribution.codename, place.root(), list});
  return run({.argv = argv,
              .env = {},
              .what = "cannot install the packages of the template",
              .log = place.log(),
              .contained = true,
              .tick = [&](std::string_view line) { report("packages", line); }});
}

Result<std::vector<std::string>> installed(const BuildPlace& place) {
  ISOLA_TRY(std::string text, run_output({.argv = {"dpkg-query", "--admindir=" + place.root() + "/var/lib/dpkg", "-W",
                                                   "-f=${Package}=${Version}\n"},
                                          .what = "cannot list the packages of the template",
                                          .log = place.log()}));
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  std::sort(out.begin(), out.end());
  return out;
}

// What this day's build wrote about itself into the account files.
Result<void> settle_shadow(const RootTree& root) {
  auto text = root.read("/etc/shadow");
  if (!text) return std::unexpected(text.error());
  std::string out;
  for (size_t at = 0; at < text->size();) {
    size_t end = std::min(text->find('\n', at), text->size());
    std::string line = text->substr(at, end - at);
    auto first = line.find(':'), second = line.find(':', first + 1), third = line.find(':', second + 1);
    if (first != std::string::npos && second != std::string::npos && third != std::string::npos)
      line = line.substr(0, second + 1) + "19000" + line.substr(third);
    out += line + "\n";
    at = end + 1;
  }
  struct stat st;
  if (::stat((root.folder() + "/etc/shadow").c_str(), &st) < 0) return sys_error("cannot look at /etc/shadow");
  ISOLA_CHECK(root.write("/etc/shadow", out, 0640));
  if (::lchown((root.folder() + "/etc/shadow").c_str(), 0, st.st_gid) < 0)
    return sys_error("cannot keep shadow's group");
  return {};
}

Result<void> configure(const RootTree& root, const HostSources& host) {
  std::string name(kGuestHostname);
  ISOLA_CHECK(root.write("/etc/hostname", name + "\n"));
  ISOLA_CHECK(root.write("/etc/hosts", "127.0.0.1 localhost " + name + "\n::1 localhost ip6-localhost ip6-loopback\n"));
  ISOLA_CHECK(root.write("/etc/resolv.conf", "nameserver " + std::string(kGuestResolver) + "\n"));
  ISOLA_CHECK(root.write("/etc/machine-id", ""));
  ISOLA_CHECK(root.write("/etc/environment", "LANG=C.UTF-8\n"));
  ISOLA_CHECK(root.folder_at("/etc/default", 0755));
  ISOLA_CHECK(root.write("/etc/default/locale", "LANG=C.UTF-8\n"));
  if (root.exists("/etc/profile")) {
    ISOLA_TRY(std::string profile, root.read("/etc/profile"));
    ISOLA_CHECK(root.write("/etc/profile", without_asking(std::move(profile))));
  }
  // A sandbox is thrown away whole: pip may install over the distribution's own Python packages.
  ISOLA_CHECK(root.write("/etc/pip.conf", "[global]\nbreak-system-packages = true\nroot-user-action = ignore\n"));
  ISOLA_CHECK(root.remove("/etc/apt/sources.list"));
  ISOLA_CHECK(root.empty_folder("/etc/apt/sources.list.d"));
  ISOLA_CHECK(
      root.write("/etc/apt/sources.list.d/" + host.distribution.id + ".sources", to_deb822(host.sources, true)));
  for (const auto& file : named_files(host.sources)) {
    if (root.exists(file)) continue;
    ISOLA_TRY(std::string contents, read_file(file));
    for (size_t at = file.find('/', 1); at != std::string::npos; at = file.find('/', at + 1))
      if (!root.exists(file.substr(0, at))) ISOLA_CHECK(root.folder_at(file.substr(0, at), 0755));
    ISOLA_CHECK(root.write(file, contents));
  }
  return {};
}

// The locale that everything starts with is a dozen small files, which every shell and every interpreter opens one by
// one: a quarter of what a shell takes to start. In an archive it is one.
Result<void> gather_locale(const BuildPlace& place, const RootTree& root) {
  const std::string folder = "/usr/lib/locale/C.utf8";
  if (!root.exists(folder) || !root.exists("/usr/bin/localedef")) return {};
  return run({.argv = {"chroot", place.root(), "/usr/bin/localedef", "--add-to-archive", folder},
              .env = {},
              .what = "cannot gather the locale of the template",
              .log = place.log(),
              .contained = true,
              .tick = {}});
}

// There is no systemd inside, and no journal. The root is an overlay, on which another one cannot write: fuse-overlayfs
// can.
Result<void> set_up_containers(const RootTree& root) {
  ISOLA_CHECK(root.folder_at("/etc/containers", 0755));
  ISOLA_CHECK(root.write("/etc/containers/containers.conf",
                         "[containers]\nlog_driver = \"k8s-file\"\n"
                         "[engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"crun\"\n"
                         "[network]\nnetwork_backend = \"netavark\"\n"));
  return root.write("/etc/containers/storage.conf",
                    "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n"
                    "graphroot = \"/var/lib/containers/storage\"\n"
                    "[storage.options.overlay]\nmount_program = \"/usr/bin/fuse-overlayfs\"\n");
}

// Nothing of the machine or the moment of the build stays: no proxies, caches, logs, locks, keys or device nodes.
Result<void> tidy(const RootTree& root) {
  for (const char* file : {"/etc/apt/apt.conf.d/99mmdebstrap", "/etc/dpkg/dpkg.cfg.d/99mmdebstrap", "/etc/.pwd.lock",
                           "/var/cache/ldconfig/aux-cache", "/var/lib/dbus/machine-id", "/root/.cache"})
    ISOLA_CHECK(root.remove(file));
  for (const char* folder : {"/var/lib/apt/lists", "/var/cache/apt", "/var/log", "/dev", "/proc", "/sys", "/run",
                             "/tmp", "/mnt", "/var/tmp"})
    ISOLA_CHECK(root.empty_folder(folder));
  ISOLA_CHECK(root.remove_matching("/etc", "", "-"));
  ISOLA_CHECK(root.remove_matching("/var/lib/dpkg", "", "-old"));
  ISOLA_CHECK(root.remove_matching("/var/cache/debconf", "", "-old"));
  ISOLA_CHECK(root.remove_matching("/etc/ssh", "ssh_host_", ""));
  for (const char* folder : {"/proc", "/sys", "/dev", "/run", "/mnt", "/opt", "/srv", "/media"})
    ISOLA_CHECK(root.folder_at(folder, 0755));
  ISOLA_CHECK(root.folder_at("/tmp", 01777));
  ISOLA_CHECK(root.folder_at("/var/tmp", 01777));
  ISOLA_CHECK(root.folder_at("/root", 0700));
  // apt wants these to exist.
  ISOLA_CHECK(root.folder_at("/var/lib/apt/lists/partial", 0700));
  ISOLA_CHECK(root.folder_at("/var/cache/apt/archives", 0755));
  ISOLA_CHECK(root.folder_at("/var/cache/apt/archives/partial", 0700));
  return root.folder_at("/var/log/apt", 0755);
}

}  // namespace

Result<std::vector<std::string>> make_rootfs(const BuildPlace& place, const Recipe& recipe, const HostSources& host,
                                             const Reporter& report) {
  report("packages");
  ISOLA_CHECK(install_packages(place, recipe, host, report));
  ISOLA_TRY(auto packages, installed(place));
  if (recipe.node) {
    ISOLA_TRY(std::string node, install_node(place, report));
    packages.push_back(node);
  }
  if (!recipe.python_packages.empty()) {
    ISOLA_TRY(auto wheels, install_python_packages(place, recipe.python_packages, report));
    packages.insert(packages.end(), wheels.begin(), wheels.end());
  }
  if (recipe.interpreter) ISOLA_CHECK(install_interpreter(place, report));
  report("tidy");
  ISOLA_TRY(RootTree root, RootTree::open(place.root()));
  ISOLA_CHECK(settle_shadow(root));
  ISOLA_CHECK(add_guest_user(root));
  ISOLA_CHECK(configure(root, host));
  ISOLA_CHECK(gather_locale(place, root));
  if (recipe.containers) ISOLA_CHECK(set_up_containers(root));
  ISOLA_CHECK(tidy(root));
  if (recipe.interpreter) ISOLA_CHECK(warm_interpreter(place, report));
  return packages;
}

}  // namespace isola::image
