// fork, exec, wait, and what a process can say about itself.
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

// Output of this very program, started as `helper WORDS`.
std::string helped(const char* program, std::initializer_list<const char*> words, int* code = nullptr) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return "pipe";
  pid_t child = begin_child([&] {
    ::dup2(ends[1], 1);
    const char* argv[8] = {"self", "helper"};
    size_t n = 2;
    for (const char* word : words) argv[n++] = word;
    argv[n] = nullptr;
    const char* environment[] = {"WORD=given", nullptr};
    ::execve(program, const_cast<char**>(argv), const_cast<char**>(environment));
    return 100;
  });
  ::close(ends[1]);
  char buffer[256];
  ssize_t n = ::read(ends[0], buffer, sizeof buffer);
  int ended = end_of(child);
  if (code) *code = ended;
  return std::string(buffer, static_cast<size_t>(n > 0 ? n : 0));
}
constexpr char kSelf[] = "/proc/self/exe";

bool copy_self(const char* name, mode_t mode = 0755) { return spill(name, slurp(kSelf), mode) && slurp(name).size(); }

constexpr Check kProcessChecks[] = {
    {"process-exit-code", "the parent gets the low eight bits of the exit code",
     [] {
       WANT(in_child([] { return 3; }) == 3, "another code");
       WANT(in_child([] { return 0x1ff; }) == 0xff, "more than eight bits");
       return ok();
     }},
    {"process-killed", "the parent learns which signal ended a child",
     [] {
       WANT(in_child([] { return ::raise(SIGTERM); }) == 128 + SIGTERM, "another end");
       return ok();
     }},
    {"process-memory-apart", "after fork a change is seen by one side only",
     [] {
       volatile int value = 1;
       in_child([&] {
         value = 2;
         return 0;
       });
       WANT(value == 1, "the parent sees the child's change");
       return ok();
     }},
    {"process-wait-leaves", "waitid with WNOWAIT leaves the child to be waited for again",
     [] {
       pid_t child = begin_child([] { return 4; });
       siginfo_t info{};
       NEED("waitid", ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT));
       WANT(info.si_pid == child && info.si_status == 4 && info.si_code == CLD_EXITED, "another child or end");
       WANT(end_of(child) == 4, "it was gone");
       return ok();
     }},
    {"process-wait-none", "wait without children: ECHILD; WNOHANG with a living one: 0",
     [] {
       REFUSED("wait", ::wait(nullptr), ECHILD);
       pid_t child = begin_child([] { return ::pause(); });
       WANT(::waitpid(child, nullptr, WNOHANG) == 0, "not 0");
       return ok();
     }},
    {"process-usage", "wait4 tells the processor time of a child",
     [] {
       pid_t child = begin_child([] {
         long end = now_ms() + 60;
         while (now_ms() < end) {
         }
         return 0;
       });
       rusage usage{};
       NEED("wait4", ::wait4(child, nullptr, 0, &usage));
       WANT(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec + usage.ru_utime.tv_sec > 0, "no time");
       WANT(usage.ru_maxrss > 0, "no memory");
       return ok();
     }},
    {"process-zombie", "a child that nobody waited for is a zombie in /proc",
     [] {
       pid_t child = begin_child([] { return 0; });
       siginfo_t info{};
       NEED("waitid", ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT));
       std::string state = line_of(slurp("/proc/" + std::to_string(child) + "/status"), "State:");
       WANT(state.find('Z') != std::string::npos, "another state");
       return ok();
     }},
    {"process-orphan", "a child without its parent gets process 1 or the subreaper",
     [] {
       NEED("prctl", ::prctl(PR_SET_CHILD_SUBREAPER, 1));
       int ends[2];
       NEED("pipe", ::pipe(ends));
       pid_t middle = begin_child([&] {
         if (::fork() == 0) {
           char c;
           ::close(ends[1]);
           (void)!::read(ends[0], &c, 1);  // until the one in the middle is gone
           ::_exit(8);
         }
         return 0;
       });
       WANT(end_of(middle) == 0, "no child");
       ::close(ends[1]);
       int status = 0;
       NEED("wait", ::wait(&status));
       WANT(WIFEXITED(status) && WEXITSTATUS(status) == 8, "another child");
       return ok();
     }},
    {"process-parent-death", "PR_SET_PDEATHSIG comes when the parent ends",
     [] {
       NEED("prctl", ::prctl(PR_SET_CHILD_SUBREAPER, 1));
       int ends[2];
       NEED("pipe", ::pipe(ends));
       begin_child([&] {
         if (::fork() == 0) {
           ::prctl(PR_SET_PDEATHSIG, SIGTERM);
           (void)!::write(ends[1], "x", 1);
           ::pause();
           ::_exit(0);
         }
         char c;
         return ::read(ends[0], &c, 1) == 1 ? 0 : 1;
       });
       int status = 0, killed = 0;
       while (::wait(&status) > 0) killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
       WANT(killed == 1, "it did not come");
       return ok();
     }},
    {"process-vfork", "vfork: the child uses the parent's memory until it ends",
     [] {
       static volatile int value = 0;
       pid_t child = ::vfork();
       if (child == 0) {
         value = 7;
         ::_exit(0);
       }
       NEED("vfork", child);
       WANT(value == 7, "the change is not seen");
       return ok();
     }},
    {"exec-words", "exec hands over words and environment",
     [] {
       std::string said = helped(kSelf, {"words", "and more"});
       WANT(said == "self|and more|given\n", "other words");
       return ok();
     }},
    {"exec-script", "a script is run by the program in its first line, with one argument",
     [] {
       WANT(copy_self("program"), "cannot copy this program");
       char folder[1024];
       std::string path = ::getcwd(folder, sizeof folder);
       spill("script", "#!" + path + "/program helper\n", 0755);
       int code = in_child([] {
         ::execl("./script", "script", nullptr);
         return 100;
       });
       WANT(code == 2, "it was not started with these words");  // what the helper answers to a word it does not know
       return ok();
     }},
    {"exec-not-executable", "exec of a file without the bit: EACCES; of none: ENOENT; of bytes: ENOEXEC",
     [] {
       char* none[] = {nullptr, nullptr};
       spill("plain", "text");
       REFUSED("execve", ::execve("./plain", none, none), EACCES);
       REFUSED("execve", ::execve("./none", none, none), ENOENT);
       ::chmod("plain", 0755);
       REFUSED("execve", ::execve("./plain", none, none), ENOEXEC);
       return ok();
     }},
    {"exec-busy", "a file that is open for writing cannot be started",
     [] {
       WANT(copy_self("program"), "cannot copy this program");
       int fd = ::open("program", O_RDWR);
       NEED("open", fd);
       int code = in_child([] {
         ::execl("./program", "program", "helper", nullptr);
         return errno;
       });
       WANT(code == ETXTBSY, code == 2 ? "it is started" : errno_name(code));
       return ok();
     }},
    {"exec-too-long", "a word of more than 128 KiB is refused",
     [] {
       std::string word(140000, 'x');
       int code = in_child([&] {
         ::execl(kSelf, "self", "helper", word.c_str(), nullptr);
         return errno;
       });
       WANT(code == E2BIG, code == 2 ? "it is taken" : errno_name(code));
       return ok();
     }},
    {"exec-many-words", "a megabyte of words is handed over",
     [] {
       int code = in_child([] {
         std::string word(1000, 'x');
         const char* argv[1003] = {"self", "helper"};
         for (int i = 2; i < 1002; ++i) argv[i] = word.c_str();
         char* none[] = {nullptr};
         ::execve(kSelf, const_cast<char**>(argv), none);
         return 100;
       });
       WANT(code == 2, "it was not started");
       return ok();
     }},
    {"exec-close", "O_CLOEXEC closes at exec, others stay open",
     [] {
       int kept = ::open("/dev/null", O_RDONLY), closed = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
       int code = 0;
       helped(kSelf, {"open", std::to_string(kept).c_str()}, &code);
       WANT(code == 1, "one without the flag was closed");
       helped(kSelf, {"open", std::to_string(closed).c_str()}, &code);
       WANT(code == 0, "one with the flag stayed open");
       return ok();
     }},
    {"exec-ignored-signals", "ignored signals stay ignored over exec",
     [] {
       ::signal(SIGUSR1, SIG_IGN);
       int code = 0;
       helped(kSelf, {"ignored"}, &code);
       WANT(code == 1, "no longer ignored");
       return ok();
     }},
    {"exec-from-memory", "fexecve runs a program from a memfd",
     [] {
       int fd = ::memfd_create("program", 0);
       NEED("memfd_create", fd);
       std::string program = slurp(kSelf);
       NEED("write", ::write(fd, program.data(), program.size()));
       int code = in_child([&] {
         const char* argv[] = {"self", "helper", "unknown", nullptr};
         char* none[] = {nullptr};
         ::syscall(SYS_execveat, fd, "", argv, none, AT_EMPTY_PATH);
         return errno;
       });
       WANT(code == 2, "execveat: " + errno_name(code));
       return ok();
     }},
    {"process-spawn", "posix_spawn starts a program",
     [] {
       pid_t child = 0;
       const char* argv[] = {"self", "helper", nullptr};
       char* none[] = {nullptr};
       int error = ::posix_spawn(&child, kSelf, nullptr, nullptr, const_cast<char**>(argv), none);
       WANT(error == 0, "posix_spawn: " + errno_name(error));
       WANT(end_of(child) == 2, "another end");
       return ok();
     }},
    {"process-clone3", "clone3 makes a process",
     [] {
       clone_args args{};
       args.exit_signal = SIGCHLD;
       long child = ::syscall(SYS_clone3, &args, sizeof args);
       if (child == 0) ::_exit(6);
       NEED("clone3", child);
       WANT(end_of(static_cast<pid_t>(child)) == 6, "another end");
       return ok();
     }},
    {"process-name", "PR_SET_NAME is seen in /proc",
     [] {
       NEED("prctl", ::prctl(PR_SET_NAME, "a-new-name"));
       WANT(slurp("/proc/self/comm") == "a-new-name\n", "another name");
       return ok();
     }},
    {"process-sessions", "sessions and groups are as setsid and setpgid made them",
     [] {
       WANT(::getsid(0) == ::getpid() && ::getpgrp() == ::getpid(), "this check has no session of its own");
       REFUSED("setsid", ::setsid(), EPERM);
       pid_t child = begin_child([] { return ::pause(); });
       WANT(::getpgid(child) == ::getpgrp(), "the child has another group");
       NEED("setpgid", ::setpgid(child, child));
       WANT(::getpgid(child) == child, "not its own group");
       return ok();
     }},
    {"process-nice", "a process can be nicer, and getpriority says so",
     [] {
       NEED("setpriority", ::setpriority(PRIO_PROCESS, 0, 7));
       WANT(::getpriority(PRIO_PROCESS, 0) == 7, "another value");
       return ok();
     }},
    {"process-affinity", "sched_setaffinity is kept to",
     [] {
       cpu_set_t all, one;
       NEED("sched_getaffinity", ::sched_getaffinity(0, sizeof all, &all));
       int first = 0;
       while (first < CPU_SETSIZE && !CPU_ISSET(first, &all)) ++first;
       CPU_ZERO(&one);
       CPU_SET(first, &one);
       NEED("sched_setaffinity", ::sched_setaffinity(0, sizeof one, &one));
       ::sched_yield();
       WANT(::sched_getcpu() == first, "it runs elsewhere");
       return ok();
     }},
    {"process-file-limit", "RLIMIT_NOFILE: EMFILE, and prlimit changes it",
     [] {
       rlimit few{20, 40}, was{};
       NEED("setrlimit", ::setrlimit(RLIMIT_NOFILE, &few));
       int fd = 0;
       while ((fd = ::dup(0)) >= 0) WANT(fd < 20, "more than the limit");
       WANT(errno == EMFILE, "another error than EMFILE");
       rlimit more{40, 40};
       NEED("prlimit", ::prlimit(::getpid(), RLIMIT_NOFILE, &more, &was));
       WANT(was.rlim_cur == 20 && ::dup(0) >= 0, "it was not raised");
       return ok();
     }},
    {"process-cpu-limit", "RLIMIT_CPU ends with SIGXCPU",
     [] {
       int code = in_child([] {
         rlimit second{1, 2};
         ::setrlimit(RLIMIT_CPU, &second);
         for (;;) {
           now_ms();
         }
         return 0;
       });
       WANT(code == 128 + SIGXCPU, "another end");
       return ok();
     }},
    {"ptrace-steps", "a tracer stops a child, reads its registers and lets it go on",
     [] {
       pid_t child = begin_child([] {
         if (::ptrace(PTRACE_TRACEME, 0, 0, 0) < 0) return 50;
         ::raise(SIGSTOP);
         return 9;
       });
       int status = 0;
       NEED("waitpid", ::waitpid(child, &status, 0));
       WANT(!WIFEXITED(status), "PTRACE_TRACEME failed");
       user_regs_struct registers{};
       NEED("PTRACE_GETREGS", ::ptrace(PTRACE_GETREGS, child, 0, &registers));
       WANT(registers.rip != 0, "no registers");
       NEED("PTRACE_SYSCALL", ::ptrace(PTRACE_SYSCALL, child, 0, 0));
       NEED("waitpid", ::waitpid(child, &status, 0));
       WANT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP, "no stop at a system call");
       NEED("PTRACE_CONT", ::ptrace(PTRACE_CONT, child, 0, 0));
       WANT(end_of(child) == 9, "another end");
       return ok();
     }},
    {"ptrace-attach", "PTRACE_SEIZE takes a running child, reads and writes its memory",
     [] {
       static volatile long word = 1234;
       pid_t child = begin_child([] {
         while (word == 1234) ::usleep(1000);
         return static_cast<int>(word);
       });
       NEED("PTRACE_SEIZE", ::ptrace(PTRACE_SEIZE, child, 0, 0));
       NEED("PTRACE_INTERRUPT", ::ptrace(PTRACE_INTERRUPT, child, 0, 0));
       NEED("waitpid", ::waitpid(child, nullptr, 0));
       errno = 0;
       WANT(::ptrace(PTRACE_PEEKDATA, child, &word, 0) == 1234, "another word");
       NEED("PTRACE_POKEDATA", ::ptrace(PTRACE_POKEDATA, child, &word, 77L));
       NEED("PTRACE_DETACH", ::ptrace(PTRACE_DETACH, child, 0, 0));
       WANT(end_of(child) == 77, "the child does not see the change");
       return ok();
     }},
    {"process-read-memory", "process_vm_readv reads a child's memory",
     [] {
       static char text[] = "in the child";
       pid_t child = begin_child([] { return ::pause(); });
       char got[sizeof text] = "";
       iovec here{got, sizeof got}, there{text, sizeof text};
       NEED("process_vm_readv", ::process_vm_readv(child, &here, 1, &there, 1, 0));
       WANT(std::string(got) == text, "other bytes");
       return ok();
     }},
    {"process-personality", "a debugger can ask for addresses that stay the same",
     [] {
       NEED("personality", ::personality(ADDR_NO_RANDOMIZE));
       WANT(::personality(0xffffffff) & ADDR_NO_RANDOMIZE, "it was not taken");
       return ok();
     }},
    {"process-undumpable", "PR_SET_DUMPABLE is kept, and exec puts it back",
     [] {
       NEED("prctl", ::prctl(PR_SET_DUMPABLE, 0));
       WANT(::prctl(PR_GET_DUMPABLE) == 0, "it was not taken");
       return ok();
     }},
    {"process-pids", "process numbers are given out anew, none twice at once",
     [] {
       pid_t a = begin_child([] { return ::pause(); }), b = begin_child([] { return ::pause(); });
       NEED("fork", b);
       WANT(a != b && a != ::getpid(), "one number twice");
       WANT(::getppid() > 0 || ::getpid() == 1, "no parent");
       return ok();
     }},
};

}  // namespace

Checks process_checks() { return kProcessChecks; }

}  // namespace isola::behaviour
