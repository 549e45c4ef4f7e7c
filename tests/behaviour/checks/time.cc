#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

long nanoseconds(clockid_t clock) {
  timespec now{};
  return ::clock_gettime(clock, &now) < 0 ? -1 : now.tv_sec * 1000000000 + now.tv_nsec;
}
volatile sig_atomic_t rang, overrun_value;
timer_t timer;

constexpr Check kTimeChecks[] = {
    {"clock-forward", "the monotonic clock never goes back",
     [] {
       long last = nanoseconds(CLOCK_MONOTONIC);
       for (int i = 0; i < 20000; ++i) {
         long now = nanoseconds(CLOCK_MONOTONIC);
         WANT(now >= last, "it went back");
         last = now;
       }
       return ok();
     }},
    {"clock-agree", "time, gettimeofday and the real-time clock agree",
     [] {
       timeval day{};
       NEED("gettimeofday", ::gettimeofday(&day, nullptr));
       long clock = nanoseconds(CLOCK_REALTIME) / 1000000000, now = ::time(nullptr);
       WANT(now - day.tv_sec <= 1 && clock - day.tv_sec <= 1 && now >= day.tv_sec && clock >= day.tv_sec,
            "they do not");
       WANT(now > 1700000000, "long ago");
       return ok();
     }},
    {"clock-kinds", "boot time, coarse, raw and TAI clocks are there",
     [] {
       for (clockid_t clock : {CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW, CLOCK_MONOTONIC_COARSE, CLOCK_REALTIME_COARSE})
         NEED("clock_gettime", nanoseconds(clock));
       NEED("CLOCK_TAI", nanoseconds(CLOCK_TAI));
       WANT(nanoseconds(CLOCK_BOOTTIME) >= nanoseconds(CLOCK_MONOTONIC_COARSE), "boot time is less than monotonic");
       return ok();
     }},
    {"clock-resolution", "clocks have a resolution of a nanosecond",
     [] {
       timespec resolution{};
       NEED("clock_getres", ::clock_getres(CLOCK_MONOTONIC, &resolution));
       WANT(resolution.tv_sec == 0 && resolution.tv_nsec == 1, "another");
       return ok();
     }},
    {"clock-vdso", "the clock is read without a system call where there is a vDSO",
     [] {
       WANT(::getauxval(AT_SYSINFO_EHDR) != 0, "there is no vDSO");
       return ok();
     }},
    {"clock-processor", "processor time goes on with work, not with sleep",
     [] {
       long before = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
       ::usleep(50000);
       long slept = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - before;
       long work = now_ms() + 60;
       while (now_ms() < work) {
       }
       long worked = nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - before - slept;
       WANT(slept < 40000000, "it went on with sleep");
       WANT(worked > 0 && worked > slept / 2, "it did not go on with work");
       return ok();
     }},
    {"clock-times", "times counts ticks of this process",
     [] {
       tms usage{};
       WANT(::times(&usage) != static_cast<clock_t>(-1), "times failed");
       WANT(::sysconf(_SC_CLK_TCK) == 100, "another number of ticks");
       return ok();
     }},
    {"sleep-at-least", "a sleep is never shorter than asked",
     [] {
       for (int i = 0; i < 5; ++i) {
         long before = nanoseconds(CLOCK_MONOTONIC);
         timespec time{0, 10000000};
         NEED("nanosleep", ::nanosleep(&time, nullptr));
         WANT(nanoseconds(CLOCK_MONOTONIC) - before >= 10000000, "it was");
       }
       return ok();
     }},
    {"sleep-until", "clock_nanosleep sleeps until a time, and not at all until one that is past",
     [] {
       long now = nanoseconds(CLOCK_MONOTONIC), until = now + 20000000;
       timespec at{until / 1000000000, until % 1000000000}, past{1, 0};
       WANT(::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == 0, "clock_nanosleep failed");
       WANT(nanoseconds(CLOCK_MONOTONIC) >= until, "too short");
       WANT(::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &past, nullptr) == 0, "clock_nanosleep failed");
       return ok();
     }},
    {"timer-alarm", "alarm tells what was left of the one before",
     [] {
       ::alarm(100);
       unsigned left = ::alarm(0);
       WANT(left >= 99 && left <= 100, "another rest");
       return ok();
     }},
    {"timer-interval", "setitimer rings again and again",
     [] {
       ::signal(SIGALRM, [](int) { rang = rang + 1; });
       itimerval often{{0, 5000}, {0, 5000}};
       NEED("setitimer", ::setitimer(ITIMER_REAL, &often, nullptr));
       while (rang < 5) ::pause();
       return ok();
     }},
    {"timer-processor", "ITIMER_PROF rings after processor time",
     [] {
       ::signal(SIGPROF, [](int) { rang = 1; });
       itimerval once{{}, {0, 20000}};
       NEED("setitimer", ::setitimer(ITIMER_PROF, &once, nullptr));
       long end = now_ms() + 20000;
       while (!rang && now_ms() < end) {
       }
       WANT(rang == 1, "never");
       return ok();
     }},
    {"timer-posix", "timer_create rings with its value",
     [] {
       struct sigaction action{};
       action.sa_sigaction = [](int, siginfo_t* info, void*) {
         overrun_value = info->si_value.sival_int;
         rang = info->si_code == SI_TIMER ? 1 : 2;
       };
       action.sa_flags = SA_SIGINFO;
       ::sigaction(SIGUSR1, &action, nullptr);
       sigevent event{};
       event.sigev_notify = SIGEV_SIGNAL, event.sigev_signo = SIGUSR1, event.sigev_value.sival_int = 42;
       NEED("timer_create", ::timer_create(CLOCK_MONOTONIC, &event, &timer));
       itimerspec once{{}, {0, 5000000}};
       NEED("timer_settime", ::timer_settime(timer, 0, &once, nullptr));
       long end = now_ms() + 20000;
       while (!rang && now_ms() < end) ::usleep(1000);
       WANT(rang == 1 && overrun_value == 42, "never, or with another value");
       return ok();
     }},
    {"timer-missed", "timer_getoverrun counts what was missed",
     [] {
       sigset_t set;
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGUSR1);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       sigevent event{};
       event.sigev_notify = SIGEV_SIGNAL, event.sigev_signo = SIGUSR1;
       NEED("timer_create", ::timer_create(CLOCK_MONOTONIC, &event, &timer));
       itimerspec often{{0, 1000000}, {0, 1000000}};
       NEED("timer_settime", ::timer_settime(timer, 0, &often, nullptr));
       ::usleep(50000);
       siginfo_t info{};
       WANT(::sigwaitinfo(&set, &info) == SIGUSR1, "no signal");
       WANT(::timer_getoverrun(timer) >= 5, "fewer than five");
       return ok();
     }},
    {"timer-thread", "SIGEV_THREAD_ID rings in that thread",
     [] {
       sigset_t set;
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGUSR1);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       sigevent event{};
       event.sigev_notify = SIGEV_THREAD_ID, event.sigev_signo = SIGUSR1;
       event._sigev_un._tid = ::gettid();
       NEED("timer_create", ::timer_create(CLOCK_MONOTONIC, &event, &timer));
       itimerspec once{{}, {0, 5000000}};
       NEED("timer_settime", ::timer_settime(timer, 0, &once, nullptr));
       timespec patience{20, 0};
       NEED("sigtimedwait", ::sigtimedwait(&set, nullptr, &patience));
       return ok();
     }},
    {"clock-adjust-read", "adjtimex tells the state of the clock",
     [] {
       timex state{};
       NEED("adjtimex", ::adjtimex(&state));
       return ok();
     }},
};

}  // namespace

Checks time_checks() { return kTimeChecks; }

}  // namespace isola::behaviour
