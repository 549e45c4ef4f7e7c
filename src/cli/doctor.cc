// isola doctor: what works on this machine, found by trying it, and what to do about what does not.
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/units.h"
#include "boundary/gvisor/runsc.h"
#include "boundary/jail/checkpoint.h"
#include "boundary/microvm/machine.h"
#include "boundary/network.h"
#include "boundary/program_output.h"
#include "boundary/uml/uml_kernel.h"
#include "boundary/versions.h"
#include "cli/commands.h"
#include "cli/core_pattern.h"
#include "cli/register.h"
#include "image/layer_store_probe.h"
#include "image/sparse_copy.h"
#include "image/spawn.h"
#include "image/template_cache.h"
#include "kernel/cgroup.h"
#include "kernel/mount.h"
#include "kernel/process.h"
#include "launcher/bucket.h"

namespace isola::cli {

namespace {

enum class Verdict { works, note, warns, fails };

struct Remark {
  std::string about;
  Verdict verdict;
  std::string what;    // one sentence
  std::string advice;  // what to do; may be empty
};

using Remarks = std::vector<Remark>;

// In a child, so that nothing of a trial stays in this process.
bool succeeds_in_child(const std::function<bool()>& trial) {
  auto child = kernel::spawn(0, [&] { return trial() ? 0 : 1; });
  if (!child) return false;
  int status = 1;
  while (::waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string first_line(const std::string& path) {
  auto text = read_file(path);
  return text ? text->substr(0, text->find('\n')) : "";
}

void check_privileges(Remarks& out) {
  if (::geteuid() != 0) {
    out.push_back({"privileges", Verdict::fails, "this is not root",
                   "run `isola` as root: the launcher makes namespaces, mounts and control groups"});
    return;
  }
  bool mounts = succeeds_in_child([] { return ::unshare(CLONE_NEWNS) == 0; });
  out.push_back(mounts ? Remark{"privileges", Verdict::works, "root, and mounts can be made", ""}
                       : Remark{"privileges", Verdict::fails, "root, but without CAP_SYS_ADMIN",
                                "in a container: run it privileged, or on the host"});
}

// By asking for it, as a launch does: a module that is not loaded yet is in no list, and is loaded then. What stays of
// the trial is that module.
void check_filesystem(Remarks& out, const std::string& type) {
  auto opened = kernel::open_filesystem_type(type);
  if (opened)
    out.push_back({type, Verdict::works, "the kernel has it", ""});
  else if (opened.error().sys_errno == EPERM)  // which `privileges` has said already
    out.push_back({type, Verdict::note, "only who may make mounts can find out whether the kernel has it", ""});
  else
    out.push_back({type, Verdict::fails, "the kernel does not offer it: " + opened.error().message,
                   fmt::format("modprobe {}", type)});
}

void check_kernel(Remarks& out) {
  utsname name{};
  ::uname(&name);
  int major = 0, minor = 0;
  std::sscanf(name.release, "%d.%d", &major, &minor);
  bool enough = major > 5 || (major == 5 && minor >= 19);
  out.push_back(enough ? Remark{"kernel", Verdict::works, fmt::format("Linux {}", name.release), ""}
                       : Remark{"kernel", Verdict::fails, fmt::format("Linux {} is too old", name.release),
                                "5.19 or newer is needed (overlay on idmapped layers)"});
  bool namespaces = succeeds_in_child(
      [] { return ::unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNS) == 0; });
  out.push_back(
      namespaces ? Remark{"namespaces", Verdict::works, "user, network, mount, ipc and uts namespaces can be made", ""}
                 : Remark{"namespaces", Verdict::fails, "a user namespace with its own network cannot be made",
                          "raise user.max_user_namespaces and user.max_net_namespaces (sysctl)"});
  for (const char* type : {"overlay", "erofs"}) check_filesystem(out, type);
  bool files = enough && (major > 6 || (major == 6 && minor >= 12));
  out.push_back({"image mounts", files ? Verdict::works : Verdict::note,
                 files ? "blobs are mounted as files" : "blobs are mounted over loop devices (Linux 6.12 needs none)",
                 ""});
}

void check_cgroups(Remarks& out, const std::string& data_dir, const std::string& cache_dir) {
  auto tree = kernel::CgroupTree::detect({.disks = {data_dir, cache_dir + "/blobs"}});
  if (!tree) {
    out.push_back({"control groups", Verdict::fails, tree.error().message, "mount the cgroup hierarchies"});
    return;
  }
  std::string version = tree->version() == kernel::CgroupVersion::v2 ? "v2" : "v1";
  if (auto missing = tree->missing(); !missing.empty()) {
    std::string names;
    for (const auto& name : missing) names += " " + name;
    out.push_back({"control groups", Verdict::fails, version + ", without:" + names,
                   "boot with the controllers enabled, or let the service manager delegate them"});
    return;
  }
  if (auto prepared = tree->prepare(); !prepared) {
    out.push_back({"control groups", Verdict::fails, prepared.error().message,
                   "let the service manager delegate cpu, memory and pids"});
    return;
  }
  out.push_back({"control groups", Verdict::works, version + ": cpu, memory and pids are limited", ""});
  out.push_back({"disk traffic", tree->layout().limits_all_io() ? Verdict::works : Verdict::note, tree->io_note(), ""});
}

void check_disk(Remarks& out, const std::string& data_dir) {
  if (auto made = make_dirs(data_dir, 0700); !made) {
    out.push_back({"disk limits", Verdict::fails, made.error().message, "give a writable --data"});
    return;
  }
  auto report = image::probe_layer_stores(data_dir);
  if (!report) {
    out.push_back({"disk limits", Verdict::fails, report.error().message, ""});
    return;
  }
  for (const auto& provider : report->providers) {
    bool chosen = provider.name == report->chosen;
    out.push_back({"disk limits: " + provider.name, provider.works ? Verdict::works : Verdict::note,
                   provider.why + (chosen ? " (this one is used)" : ""), provider.works ? "" : provider.advice});
  }
  bool free = report->chosen == "btrfs" || image::can_reflink(data_dir);
  out.push_back({"snapshots", free ? Verdict::works : Verdict::note,
                 report->chosen == "btrfs" ? "files are shared between a sandbox and its snapshots, whatever their size"
                 : free                    ? "files are shared between a sandbox and its snapshots, file by file"
                        : "files are copied for each snapshot and fork: this filesystem cannot share them",
                 free ? "" : "keep the data directory on XFS with reflinks or on btrfs"});
  if (!report->chosen.empty() && report->chosen != "btrfs")
    out.push_back(
        {"damage on the disk", Verdict::note,
         "found in memory and archives, not in the files of sandboxes: " + report->chosen + " has no checksums of them",
         "use the store btrfs, or a disk below that has checksums"});
  if (report->chosen.empty())
    out.push_back({"disk limits", Verdict::fails, "nothing here can limit what a sandbox writes",
                   "install btrfs-progs or e2fsprogs; or accept the risk with --allow-unquotaed-disk"});
}

void check_network(Remarks& out) {
  auto network = boundary::IslandNetwork::prepare();
  auto tried = network ? network->expected() : Result<std::string>(std::unexpected(network.error()));
  out.push_back(tried ? Remark{"network", Verdict::works, "an island's redirect rules can be installed (nftables)", ""}
                      : Remark{"network", Verdict::fails, tried.error().message,
                               "the kernel needs nf_tables with nat and redirect (modprobe nft_redir)"});
}

void check_host(Remarks& out) {
  std::string pattern = first_line("/proc/sys/kernel/core_pattern");
  switch (core_road(pattern)) {
    case CoreRoad::file:
      out.push_back({"core dumps", Verdict::works, "written to files, which a sandbox's limits forbid", ""});
      return;
    case CoreRoad::program:
      out.push_back({"core dumps", Verdict::note,
                     "this machine pipes core dumps into a program that runs as root; sandboxes are kept from it by a "
                     "limit that they "
                     "cannot change",
                     "sysctl kernel.core_pattern=core, unless that program is needed, is a second line behind that"});
      return;
    case CoreRoad::socket:
      out.push_back({"core dumps", Verdict::warns,
                     "this machine sends core dumps to a socket (" + pattern +
                         "), and no limit keeps a sandbox's from it: the program behind it is handed memory and names "
                         "that the sandbox chose",
                     "sysctl kernel.core_pattern=core, or a pipe (|PROGRAM), from which sandboxes are kept"});
      return;
  }
}

// That it is there says little: the one of Debian 12 fails on newer kernels.
Remark checkpoint_check() {
  const auto found = boundary::jail::Criu::find();
  const std::string& criu = found.program;
  if (criu.empty())
    return {"checkpoint", Verdict::note, "criu is not installed: only the files of a sandbox can be kept",
            "./dev criu provides one"};
  if (!found.complete())
    return {"checkpoint", Verdict::note,
            std::string(found.kPreload) + " is not beside isola: only the files of a sandbox can be kept",
            "it is built with isola, and belongs into the same folder"};
  if (::geteuid() != 0)
    return {"checkpoint", Verdict::note, criu + " is there; whether it works, only root can try", ""};
  auto tried = image::run({.argv = {"timeout", "20", criu, "check"}, .what = criu + " does not work with this kernel"});
  if (!tried)
    return {"checkpoint", Verdict::note, tried.error().message + ": only the files of a sandbox can be kept",
            "./dev criu provides one that does; ISOLA_CRIU names another"};
  return {"checkpoint", Verdict::works, criu + ": sandboxes can be paused and forked with their memory", ""};
}

void check_microvm(Remarks& out, bool jail) {
  auto machine = boundary::microvm::Machine::find();
  if (!machine) {
    out.push_back({"boundary microvm", Verdict::note, machine.error().message, ""});
    return;
  }
  machine->recall_kvm();
  std::string text =
      fmt::format("QEMU {}, Linux {} ({})", machine->qemu_version, machine->kernel_version, machine->folder);
  text += machine->kvm ? "; accelerated by KVM" : "; without KVM, and so many times slower: " + machine->why_not;
  out.push_back({"boundary microvm", jail ? Verdict::works : Verdict::fails, text, ""});
  if (machine->outdated)
    out.push_back({"QEMU of microvm", Verdict::warns, machine->staleness(), "./dev up --boundary microvm"});
}

void check_boundaries(Remarks& out, bool jail) {
  out.push_back(
      {"boundary jail", jail ? Verdict::works : Verdict::fails,
       jail ? "namespaces, seccomp, capabilities and control groups; it shares this machine's kernel" : "see above",
       ""});
  auto runsc = boundary::gvisor::Runsc::find();
  if (!runsc)
    out.push_back({"boundary gvisor", Verdict::note, runsc.error().message, ""});
  else
    out.push_back({"boundary gvisor", jail ? Verdict::works : Verdict::fails,
                   "runsc " + runsc->version + ", platform " + runsc->platform + " (" + runsc->program + ")" +
                       (runsc->keeps_memory() ? "" : "; sandboxes can be paused and forked without their memory only"),
                   ""});
  auto kernel = boundary::uml::UmlKernel::find();
  if (!kernel)
    out.push_back({"boundary uml", Verdict::note, kernel.error().message, ""});
  else
    out.push_back({"boundary uml", jail ? Verdict::works : Verdict::fails,
                   "user-mode Linux " + kernel->version + " (" + kernel->program + ")", ""});
  check_microvm(out, jail);
  out.push_back(checkpoint_check());
  auto buckets = launcher::find_bucket_client();
  out.push_back({"buckets", Verdict::note,
                 buckets ? "s3fs and /dev/fuse are there: sandboxes can have buckets of S3-compatible stores"
                         : buckets.error().message,
                 ""});
}

// Which versions are in use; of an old one, what is known against it.
void check_versions(Remarks& out) {
  using boundary::Program;
  auto tell = [&](Program program, const std::string& shown, const std::string& version) {
    std::string why = known_concern(program, version);
    out.push_back({fmt::format("version of {}", to_string(program)), why.empty() ? Verdict::works : Verdict::warns,
                   why.empty() ? shown : why, why.empty() ? "" : "install a newer one"});
  };
  utsname name{};
  ::uname(&name);
  tell(Program::kernel, name.release, boundary::kernel_version(name.release, name.version));
  if (auto runsc = boundary::gvisor::Runsc::find()) tell(Program::runsc, runsc->version, runsc->version);
  auto of_program = [&](Program program, const std::string& path) {
    if (path.empty() || ::access(path.c_str(), X_OK) < 0) return;
    auto text = boundary::output_of(path, "--version");
    std::string version = text ? boundary::version_in(*text) : "";
    tell(program, version.empty() ? path + " does not tell its version" : version, version);
  };
  of_program(Program::criu, boundary::jail::Criu::find().program);
  // Kernels of the sandboxes' own, by the number that says what was mended in them.
  auto inside = [&](const char* where, const std::string& shown, const std::string& concern) {
    out.push_back({fmt::format("kernel of {}", where), concern.empty() ? Verdict::works : Verdict::warns,
                   concern.empty() ? shown : concern,
                   concern.empty() ? "" : fmt::format("./dev up --boundary {}, with newer packages", where)});
  };
  if (auto kernel = boundary::uml::UmlKernel::find()) inside("uml", kernel->version, kernel->concern());
  if (auto machine = boundary::microvm::Machine::find()) {
    tell(Program::qemu, machine->qemu_version, machine->qemu_version);
    const std::string version = boundary::kernel_version(machine->kernel_version, machine->kernel_build);
    inside("microvm", version.empty() ? machine->kernel_version : version, machine->kernel_concern());
  }
}

void check_templates(Remarks& out, const Common& common) {
  auto all = image::TemplateCache(common.cache_dir).list();
  if (!all || all->empty()) {
    out.push_back({"templates", Verdict::note, "none is built yet", "isola template build base"});
    return;
  }
  std::string names;
  for (const auto& t : *all) names += (names.empty() ? "" : ", ") + t.name + " (" + format_size(t.size) + ")";
  out.push_back({"templates", Verdict::works, names, ""});
}

const char* word(Verdict verdict) {
  switch (verdict) {
    case Verdict::works: return "works";
    case Verdict::note: return "note";
    case Verdict::warns: return "warns";
    case Verdict::fails: break;
  }
  return "FAILS";
}

}  // namespace

int doctor(const Common& common) {
  Remarks remarks;
  check_privileges(remarks);
  check_kernel(remarks);
  check_cgroups(remarks, common.data_dir, common.cache_dir);
  if (::geteuid() == 0) {
    check_disk(remarks, common.data_dir);
    check_network(remarks);
  }
  check_host(remarks);
  bool good =
      std::none_of(remarks.begin(), remarks.end(), [](const Remark& one) { return one.verdict == Verdict::fails; });
  check_boundaries(remarks, good);
  check_versions(remarks);
  check_templates(remarks, common);

  if (common.json) {
    nlohmann::json out = nlohmann::json::array();
    for (const auto& one : remarks)
      out.push_back({{"about", one.about}, {"verdict", word(one.verdict)}, {"what", one.what}, {"advice", one.advice}});
    std::puts(out.dump(2).c_str());
    return good ? 0 : 1;
  }
  for (const auto& one : remarks) {
    std::printf("%-6s %-28s %s\n", word(one.verdict), one.about.c_str(), one.what.c_str());
    if (!one.advice.empty()) std::printf("%-35s → %s\n", "", one.advice.c_str());
  }
  std::puts(good ? "\nSandboxes can run here." : "\nSandboxes cannot run here yet: mend what FAILS.");
  return good ? 0 : 1;
}

void add_doctor(CLI::App& app, Common& common, int& code) {
  app.add_subcommand("doctor", "What works on this machine, and what to do about what does not")->callback([&] {
    code = doctor(common);
  });
}

}  // namespace isola::cli
