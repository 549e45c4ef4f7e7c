// One hostile program: a function that tries ONE thing as root inside the sandbox and says how it went.
//
//   Outcome try_mount(const Args&) { return judge("mount tmpfs", ::mount("x", "/tmp", "tmpfs", 0, nullptr)); }
//
// Exit codes of `isola-hostile NAME`: 0 the attack worked (a breach), 10 contained (one line on stdout says how),
// 77 could not be tried here (with the reason); anything else is an error of the program itself.
// No program may do harm where nothing contains it: probes are harmless (a value is written back as it was read, a
// system call gets arguments that only a permission check would look at first) and bombs stop by themselves.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace isola::hostile {

struct Outcome {
  enum Kind { breach = 0, contained = 10, untried = 77 };
  Kind kind;
  std::string how;
};

inline Outcome breach(std::string how) { return {Outcome::breach, std::move(how)}; }
inline Outcome contained(std::string how) { return {Outcome::contained, std::move(how)}; }
inline Outcome untried(std::string why) { return {Outcome::untried, std::move(why)}; }

// "EPERM" for 1.
std::string errno_name(int number);
// A result as system calls give it: negative means refused (errno says how), anything else that the attack worked.
Outcome judge(std::string_view what, long result);

// Several roads to one goal: any that works is a breach.
class Attempts {
 public:
  void add(std::string_view what, long result);  // errno counts when the result is negative
  void worked(std::string_view what);
  void refused(std::string_view what, std::string_view how);
  bool any_worked() const { return !worked_.empty(); }
  Outcome outcome() const;

 private:
  std::string worked_, refused_;
};

// Arguments after the program's name.
class Args {
 public:
  explicit Args(std::span<char* const> words) : words_(words) {}
  std::string text(size_t i, std::string_view fallback) const;
  long number(size_t i, long fallback) const;

 private:
  std::span<char* const> words_;
};

// How a run inside the jail has to end. What each one asks of the runner is in docs/hostile.md.
enum class Expect {
  contained,        // exit 10
  killed_by_limit,  // exit 10, or the command is killed (SIGKILL), or the sandbox ends with a limit as its reason
  times_out,        // never ends by itself: the runner's timeout ends it
  floods,           // exit 0 is allowed: the host's memory and the link are what is judged
  judged_outside,   // exit 10 says only that it was tried; the runner looks at the host, the link or a neighbour
};
std::string_view to_string(Expect expect);

// What a run needs, or is.
enum Flag : unsigned {
  kNeedsMemoryLimit = 1 << 0,
  kNeedsPidsLimit = 1 << 1,
  kNeedsDiskLimit = 1 << 2,
  kSlow = 1 << 3,
  kNeedsNeighbour = 1 << 4,
  kRunsBare = 1 << 5,  // main() must not stand between: no watching parent
  // A gate with the policy of evasions, and servers behind it (gate/outside.h). Its control is a namespace with a
  // default route to the same servers.
  kNeedsOutside = 1 << 6,
  // What the control environment has to prepare (tests/hostile/control.h).
  kControlLeakedFd = 1 << 8,      // fd 9 is the host's root folder
  kControlCwdOutside = 1 << 9,    // started with the cwd outside of its root
  kControlTarget = 1 << 10,       // ISOLA_TARGET_PID is an ordinary process, outside as it were
  kControlNetwork = 1 << 11,      // a host with services: ISOLA_CANARY_TCP, _TCP6, _UDP; a listener to hijack; a wire
  kControlIpc = 1 << 12,          // somebody else's shared memory and message queue
  kControlWitness = 1 << 13,      // ISOLA_WITNESS: a file that a naive host creates when it was fooled
  kControlNaiveReader = 1 << 14,  // the naive host keeps reading ISOLA_RACE_PATH by its name
  kControlLock = 1 << 15,         // somebody else holds a lock on the file /locked
  kControlRealCgroups = 1 << 16,  // sees the hierarchy of its own control group, writable
  kControlPivot = 1 << 17,        // a real root by pivot_root: the kernel makes no user namespace after a mere chroot
  kControlHostGroups = 1 << 18,   // no cgroup namespace of its own
  kControlMayLack = 1 << 19,      // some kernels are built without the thing: the control is then skipped, and says so
  kControlSysResource = 1 << 20,  // the machine's root itself may lack CAP_SYS_RESOURCE (a container): the same
  kControlDisk = 1 << 21,         // a disk of its own: a machine may lock its real ones even against root
  kControlTracking = 1 << 22,     // packet rules that make the kernel track every connection
};

struct Program {
  std::string_view name;
  std::string_view group;        // the class of attack
  std::string_view tries;        // one sentence
  std::string_view containment;  // what containment looks like
  Outcome (*run)(const Args&);
  Expect expect = Expect::contained;
  unsigned flags = 0;
  std::string_view control_args = "";  // words for the control run: bombs that must fit there
  std::string_view no_control = "";    // why there is no control run; empty: there is one
  std::string_view leaks = "";         // judged outside: a breach when names with this text reach a name server …
  size_t leaks_most = 0;               // … more often than this
};

// One table per family (programs/*.cc); table.cc joins them.
using Family = std::span<const Program>;
const std::vector<const Program*>& all_programs();
const Program* find_program(std::string_view name);
// The boundary with a kernel of its own that lets this one succeed, harmlessly for everybody outside; or nothing.
std::string_view allowed_inside(std::string_view name);

}  // namespace isola::hostile
