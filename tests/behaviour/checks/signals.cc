#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/ucontext.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

volatile sig_atomic_t seen, seen_nested;
siginfo_t info;
volatile uintptr_t stack_at;

void note(int signal) { seen = signal; }
void note_info(int signal, siginfo_t* what, void*) {
  seen = signal;
  info = *what;
}
void on(int signal, int flags = 0) {
  struct sigaction action{};
  action.sa_sigaction = note_info;
  action.sa_flags = SA_SIGINFO | flags;
  ::sigaction(signal, &action, nullptr);
}
sigset_t set_of(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : signals) ::sigaddset(&set, signal);
  return set;
}
// A fault in a child whose handler leaves with 1 when the signal came with this code, and address if one is given.
int fault_code;
void* fault_address;
void on_fault(int, siginfo_t* what, void*) {
  bool right = what->si_code == fault_code && (!fault_address || what->si_addr == fault_address);
  ::_exit(right ? 1 : 2);
}
template <typename F>
int fault(int signal, int code, void* address, F f) {
  return in_child([&] {
    fault_code = code, fault_address = address;
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(signal, &action, nullptr);
    f();
    return 3;
  });
}

constexpr Check kSignalChecks[] = {
    {"signal-sender", "a handler learns who sent the signal",
     [] {
       on(SIGUSR1);
       NEED("kill", ::kill(::getpid(), SIGUSR1));
       WANT(seen == SIGUSR1, "it was not delivered before kill returned");
       WANT(info.si_code == SI_USER && info.si_pid == ::getpid() && info.si_uid == ::getuid(), "another sender");
       return ok();
     }},
    {"signal-blocked", "a blocked signal waits",
     [] {
       on(SIGUSR1);
       sigset_t set = set_of({SIGUSR1}), pending;
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       ::raise(SIGUSR1);
       ::sigpending(&pending);
       WANT(!seen && ::sigismember(&pending, SIGUSR1), "it did not wait");
       ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
       WANT(seen == SIGUSR1, "it never came");
       return ok();
     }},
    {"signal-once", "an ordinary signal that waits comes once",
     [] {
       sigset_t set = set_of({SIGUSR1});
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       for (int i = 0; i < 3; ++i) ::kill(::getpid(), SIGUSR1);
       timespec none{};
       WANT(::sigtimedwait(&set, nullptr, &none) == SIGUSR1, "it did not come");
       REFUSED("sigtimedwait", ::sigtimedwait(&set, nullptr, &none), EAGAIN);
       return ok();
     }},
    {"signal-queue", "real-time signals queue in order, with their values",
     [] {
       int signal = SIGRTMIN + 1;
       sigset_t set = set_of({signal});
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       for (int i = 0; i < 3; ++i) NEED("sigqueue", ::sigqueue(::getpid(), signal, sigval{.sival_int = i}));
       for (int i = 0; i < 3; ++i) {
         siginfo_t got{};
         WANT(::sigwaitinfo(&set, &got) == signal && got.si_value.sival_int == i && got.si_code == SI_QUEUE,
              "another order or value");
       }
       return ok();
     }},
    {"signal-restart", "with SA_RESTART a read goes on, without it answers EINTR",
     [] {
       for (int flags : {SA_RESTART, 0}) {
         int ends[2];
         NEED("pipe", ::pipe(ends));
         on(SIGUSR1, flags);
         seen = 0;
         pid_t parent = ::getpid();
         begin_child([&] {
           // Until the parent says that it was interrupted, or the byte comes.
           for (int i = 0; i < 20; ++i) {
             ::usleep(20000);
             ::kill(parent, SIGUSR1);
           }
           return static_cast<int>(::write(ends[1], "x", 1));
         });
         char c;
         ssize_t n = ::read(ends[0], &c, 1);
         WANT(seen == SIGUSR1, "no signal");
         if (flags) WANT(n == 1, "the read was not restarted");
         if (!flags) WANT(n < 0 && errno == EINTR, "no EINTR");
       }
       return ok();
     }},
    {"signal-sleep-rest", "an interrupted nanosleep says how much was left",
     [] {
       on(SIGALRM);
       itimerval soon{{}, {0, 50000}};
       NEED("setitimer", ::setitimer(ITIMER_REAL, &soon, nullptr));
       timespec want{30, 0}, left{};
       REFUSED("nanosleep", ::nanosleep(&want, &left), EINTR);
       WANT(left.tv_sec > 5 && left.tv_sec < 30, "another rest");
       return ok();
     }},
    {"signal-alternate-stack", "a handler runs on the alternate stack",
     [] {
       static char stack[65536];
       stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
       NEED("sigaltstack", ::sigaltstack(&alternate, nullptr));
       struct sigaction action{};
       action.sa_handler = [](int) {
         int here = 0;
         stack_at = reinterpret_cast<uintptr_t>(&here);
       };
       action.sa_flags = SA_ONSTACK;
       ::sigaction(SIGUSR1, &action, nullptr);
       ::raise(SIGUSR1);
       auto begin = reinterpret_cast<uintptr_t>(stack);
       WANT(stack_at >= begin && stack_at < begin + sizeof stack, "it ran elsewhere");
       return ok();
     }},
    {"signal-stack-overflow", "a stack that overflows can be handled on the alternate stack",
     [] {
       int code = in_child([] {
         static char stack[65536];
         stack_t alternate{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
         ::sigaltstack(&alternate, nullptr);
         struct sigaction action{};
         action.sa_handler = [](int) { ::_exit(7); };
         action.sa_flags = SA_ONSTACK;
         ::sigaction(SIGSEGV, &action, nullptr);
         rlimit small{1 << 20, 1 << 20};
         ::setrlimit(RLIMIT_STACK, &small);
         struct Deep {
           static int go(int n) {
             volatile char room[4096];
             room[0] = static_cast<char>(n);
             return n > 1000000 ? 0 : go(n + 1) + room[0];
           }
         };
         return Deep::go(0);
       });
       WANT(code == 7, "the handler did not run");
       return ok();
     }},
    {"signal-fault-address", "SIGSEGV tells the address and why",
     [] {
       auto* page = static_cast<char*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
       WANT(fault(SIGSEGV, SEGV_ACCERR, page + 5, [&] { *static_cast<volatile char*>(page + 5) = 1; }) == 1,
            "a write to a read-only page: another address or code");
       ::munmap(page, 4096);
       WANT(fault(SIGSEGV, SEGV_MAPERR, page, [&] { *static_cast<volatile char*>(page) = 1; }) == 1,
            "a page that is not there: another address or code");
       return ok();
     }},
    {"signal-fault-kinds", "a division by zero, a bad instruction and a breakpoint say what they are",
     [] {
       WANT(fault(SIGFPE, FPE_INTDIV, nullptr,
                  [] {
                    volatile int zero = 0;
                    volatile int one = 1;
                    one = one / zero;
                  }) == 1,
            "division: another code");
       WANT(fault(SIGILL, ILL_ILLOPN, nullptr, [] { asm volatile("ud2"); }) == 1, "ud2: another code");
       WANT(fault(SIGTRAP, SI_KERNEL, nullptr, [] { asm volatile("int3"); }) == 1, "int3: another code");
       return ok();
     }},
    {"signal-skip-instruction", "a handler can change where the program goes on",
     [] {
       int code = in_child([] {
         struct sigaction action{};
         action.sa_sigaction = [](int, siginfo_t*, void* context) {
           static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] += 2;  // the length of ud2
         };
         action.sa_flags = SA_SIGINFO;
         ::sigaction(SIGILL, &action, nullptr);
         asm volatile("ud2");
         return 9;
       });
       WANT(code == 9, "it did not go on behind the instruction");
       return ok();
     }},
    {"signal-reset", "SA_RESETHAND is the default the second time",
     [] {
       int code = in_child([] {
         on(SIGUSR1, static_cast<int>(SA_RESETHAND));
         ::raise(SIGUSR1);
         ::raise(SIGUSR1);
         return 0;
       });
       WANT(code == 128 + SIGUSR1, "the handler stayed");
       return ok();
     }},
    {"signal-mask-in-handler", "signals of sa_mask wait until the handler is through",
     [] {
       struct sigaction action{};
       action.sa_handler = [](int) {
         ::raise(SIGUSR2);
         seen_nested = seen;
       };
       action.sa_mask = set_of({SIGUSR2});
       ::sigaction(SIGUSR1, &action, nullptr);
       ::signal(SIGUSR2, note);
       ::raise(SIGUSR1);
       WANT(seen_nested == 0, "it came into the handler");
       WANT(seen == SIGUSR2, "it never came");
       return ok();
     }},
    {"signal-group", "kill(0) reaches every process of the group",
     [] {
       int code = in_child([] {
         ::setpgid(0, 0);
         pid_t other = begin_child([] {
           ::pause();
           return 0;
         });
         ::signal(SIGTERM, SIG_IGN);
         ::kill(0, SIGTERM);
         return end_of(other) == 128 + SIGTERM ? 5 : 6;
       });
       WANT(code == 5, "the other one lives on");
       return ok();
     }},
    {"signal-stop-and-go", "SIGSTOP and SIGCONT are seen by the parent",
     [] {
       pid_t child = begin_child([] {
         for (;;) ::pause();
         return 0;
       });
       int status = 0;
       NEED("kill", ::kill(child, SIGSTOP));
       NEED("waitpid", ::waitpid(child, &status, WUNTRACED));
       WANT(WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP, "not seen as stopped");
       NEED("kill", ::kill(child, SIGCONT));
       NEED("waitpid", ::waitpid(child, &status, WCONTINUED));
       WANT(WIFCONTINUED(status), "not seen as going on");
       ::kill(child, SIGKILL);
       WANT(end_of(child) == 128 + SIGKILL, "not killed");
       return ok();
     }},
    {"signal-nobody", "a process that is not there: ESRCH; a signal that is not one: EINVAL",
     [] {
       pid_t gone = begin_child([] { return 0; });
       end_of(gone);
       REFUSED("kill", ::kill(gone, 0), ESRCH);
       REFUSED("kill", ::kill(::getpid(), 1000), EINVAL);
       struct sigaction action{};
       action.sa_handler = note;
       REFUSED("sigaction SIGKILL", ::sigaction(SIGKILL, &action, nullptr), EINVAL);
       return ok();
     }},
    {"signal-child", "SIGCHLD tells which child ended, and how",
     [] {
       sigset_t set = set_of({SIGCHLD});
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       pid_t child = begin_child([] { return 5; });
       siginfo_t got{};
       WANT(::sigwaitinfo(&set, &got) == SIGCHLD, "no SIGCHLD");
       WANT(got.si_pid == child && got.si_code == CLD_EXITED && got.si_status == 5, "another child or end");
       return ok();
     }},
    {"signal-ignored-child", "who ignores SIGCHLD has no zombies",
     [] {
       ::signal(SIGCHLD, SIG_IGN);
       pid_t child = begin_child([] { return 5; });
       REFUSED("waitpid", ::waitpid(child, nullptr, 0), ECHILD);
       return ok();
     }},
    {"signal-suspend", "sigsuspend lets a signal in and puts the mask back",
     [] {
       on(SIGUSR1);
       sigset_t set = set_of({SIGUSR1}), none = set_of({}), after;
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       ::raise(SIGUSR1);
       REFUSED("sigsuspend", ::sigsuspend(&none), EINTR);
       ::sigprocmask(SIG_BLOCK, nullptr, &after);
       WANT(seen == SIGUSR1 && ::sigismember(&after, SIGUSR1), "no signal, or another mask");
       return ok();
     }},
};

}  // namespace

Checks signal_checks() { return kSignalChecks; }

}  // namespace isola::behaviour
