#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "../topics.h"

namespace isola::behaviour {
namespace {

long futex(std::atomic<int>* word, int what, int value, const timespec* time = nullptr, int mask = 0) {
  return ::syscall(SYS_futex, word, what, value, time, nullptr, mask);
}
template <typename T>
T* shared() {
  void* page = ::mmap(nullptr, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return page == MAP_FAILED ? nullptr : new (page) T{};
}
pthread_mutex_t* shared_mutex(int robust, int protocol) {
  auto* mutex = shared<pthread_mutex_t>();
  pthread_mutexattr_t how;
  ::pthread_mutexattr_init(&how);
  ::pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&how, robust);
  ::pthread_mutexattr_setprotocol(&how, protocol);
  ::pthread_mutex_init(mutex, &how);
  return mutex;
}

constexpr Check kThreadChecks[] = {
    {"thread-many", "64 threads count to a sum",
     [] {
       std::atomic<int> sum = 0;
       std::vector<std::thread> all;
       for (int i = 0; i < 64; ++i) all.emplace_back([&] { sum += 1; });
       for (auto& one : all) one.join();
       WANT(sum == 64, "another sum");
       return ok();
     }},
    {"thread-ids", "threads share the process number and have numbers of their own",
     [] {
       pid_t pid = 0, tid = 0;
       std::thread([&] { pid = ::getpid(), tid = ::gettid(); }).join();
       WANT(pid == ::getpid() && tid != ::gettid() && ::gettid() == ::getpid(), "other numbers");
       return ok();
     }},
    {"thread-names", "each thread has a name and a folder in /proc/self/task",
     [] {
       std::string name;
       std::thread([&] {
         ::prctl(PR_SET_NAME, "worker");
         name = slurp("/proc/self/task/" + std::to_string(::gettid()) + "/comm");
       }).join();
       WANT(name == "worker\n", "another name");
       WANT(slurp("/proc/self/comm") != "worker\n", "the process took the name");
       return ok();
     }},
    {"thread-local", "each thread has variables of its own",
     [] {
       static thread_local int value = 5;
       int other = 0;
       value = 6;
       std::thread([&] { other = value; }).join();
       WANT(other == 5 && value == 6, "they share it");
       return ok();
     }},
    {"thread-exit-group", "exit of one thread ends them all",
     [] {
       int code = in_child([] {
         std::thread([] { ::_exit(12); }).detach();
         for (;;) ::pause();
         return 0;
       });
       WANT(code == 12, "another code");
       return ok();
     }},
    {"thread-exec", "exec in a thread makes the process that program",
     [] {
       int code = in_child([] {
         std::thread([] {
           char* argv[] = {const_cast<char*>("self"), const_cast<char*>("helper"), nullptr};
           ::execve("/proc/self/exe", argv, nullptr);
         }).join();
         return 100;
       });
       WANT(code == 2, "another code");
       return ok();
     }},
    {"thread-signal", "tgkill reaches that thread",
     [] {
       static std::atomic<pid_t> got = 0, tid = 0;
       ::signal(SIGUSR1, [](int) { got = ::gettid(); });
       std::atomic<bool> over = false;
       std::thread other([&] {
         tid = ::gettid();
         while (!over) ::usleep(1000);
       });
       while (!tid) ::usleep(1000);
       ::tgkill(::getpid(), tid, SIGUSR1);
       for (int i = 0; i < 10000 && !got; ++i) ::usleep(1000);
       over = true;
       other.join();
       WANT(got == tid, "another thread got it");
       return ok();
     }},
    {"thread-cpu-clock", "a thread has a processor clock of its own",
     [] {
       timespec before{}, other{};
       ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
       std::thread([&] { ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &other); }).join();
       WANT(other.tv_sec == 0, "a new thread has used seconds");
       return ok();
     }},
    {"futex-wait-wake", "a futex wakes as many as it is told",
     [] {
       static std::atomic<int> word = 0, woken = 0, ready = 0;
       std::vector<std::thread> all;
       for (int i = 0; i < 3; ++i)
         all.emplace_back([] {
           ++ready;
           while (word == 0) futex(&word, FUTEX_WAIT_PRIVATE, 0);
           ++woken;
         });
       while (ready < 3) ::usleep(1000);
       word = 1;
       futex(&word, FUTEX_WAKE_PRIVATE, 1000);
       for (auto& one : all) one.join();
       WANT(woken == 3, "some sleep on");
       return ok();
     }},
    {"futex-value", "a futex that has another value does not wait",
     [] {
       std::atomic<int> word = 1;
       REFUSED("FUTEX_WAIT", futex(&word, FUTEX_WAIT_PRIVATE, 0), EAGAIN);
       return ok();
     }},
    {"futex-timeout", "a wait ends when its time is up, relative or absolute",
     [] {
       std::atomic<int> word = 0;
       timespec soon{0, 20000000}, now{};
       long start = now_ms();
       REFUSED("FUTEX_WAIT", futex(&word, FUTEX_WAIT_PRIVATE, 0, &soon), ETIMEDOUT);
       WANT(now_ms() - start >= 19, "too early");
       ::clock_gettime(CLOCK_MONOTONIC, &now);
       REFUSED("FUTEX_WAIT_BITSET", futex(&word, FUTEX_WAIT_BITSET_PRIVATE, 0, &now, -1), ETIMEDOUT);
       return ok();
     }},
    {"futex-across-processes", "a futex in shared memory wakes another process",
     [] {
       auto* word = shared<std::atomic<int>>();
       pid_t child = begin_child([&] {
         while (*word == 0) futex(word, FUTEX_WAIT, 0);
         return 3;
       });
       ::usleep(20000);
       *word = 1;
       futex(word, FUTEX_WAKE, 1);
       WANT(end_of(child) == 3, "it sleeps on");
       return ok();
     }},
    {"futex-requeue", "FUTEX_CMP_REQUEUE moves waiters to another futex",
     [] {
       static std::atomic<int> one = 0, two = 0, ready = 0, woken = 0;
       std::thread([] {
         ready = 1;
         futex(&one, FUTEX_WAIT_PRIVATE, 0);
         woken = 1;
       }).detach();
       while (!ready) ::usleep(1000);
       long moved = 0;
       for (int i = 0; i < 2000 && moved == 0; ++i) {
         ::usleep(1000);
         moved = ::syscall(SYS_futex, &one, FUTEX_CMP_REQUEUE_PRIVATE, 0, 1, &two, 0);
       }
       WANT(moved == 1 && !woken, "nobody was moved");
       WANT(futex(&two, FUTEX_WAKE_PRIVATE, 1) == 1, "it does not wait at the second");
       return ok();
     }},
    {"mutex-across-processes", "a mutex in shared memory holds between processes",
     [] {
       auto* mutex = shared_mutex(PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_NONE);
       ::pthread_mutex_lock(mutex);
       WANT(in_child([&] { return ::pthread_mutex_trylock(mutex); }) == EBUSY, "another process got it");
       return ok();
     }},
    {"mutex-robust", "a robust mutex says that its owner died",
     [] {
       auto* mutex = shared_mutex(PTHREAD_MUTEX_ROBUST, PTHREAD_PRIO_NONE);
       in_child([&] { return ::pthread_mutex_lock(mutex); });
       WANT(::pthread_mutex_lock(mutex) == EOWNERDEAD, "no EOWNERDEAD");
       return ok();
     }},
    {"mutex-priority", "a mutex with priority inheritance locks and unlocks",
     [] {
       auto* mutex = shared_mutex(PTHREAD_MUTEX_STALLED, PTHREAD_PRIO_INHERIT);
       int error = ::pthread_mutex_lock(mutex);
       if (error) return failed("lock", error);
       std::atomic<int> got = 0;
       std::thread other([&] {
         got = ::pthread_mutex_lock(mutex) == 0 ? 1 : 2;
         ::pthread_mutex_unlock(mutex);
       });
       ::usleep(20000);
       WANT(got == 0, "two have it");
       ::pthread_mutex_unlock(mutex);
       other.join();
       WANT(got == 1, "the second never got it");
       return ok();
     }},
    {"condition-timeout", "a condition variable's wait ends in time",
     [] {
       pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
       pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
       timespec until{};
       ::clock_gettime(CLOCK_REALTIME, &until);
       ::pthread_mutex_lock(&mutex);
       WANT(::pthread_cond_timedwait(&condition, &mutex, &until) == ETIMEDOUT, "another answer");
       return ok();
     }},
    {"semaphore-across-processes", "a semaphore in shared memory counts for all",
     [] {
       auto* semaphore = shared<sem_t>();
       NEED("sem_init", ::sem_init(semaphore, 1, 0));
       pid_t child = begin_child([&] { return ::sem_wait(semaphore) == 0 ? 4 : 5; });
       ::sem_post(semaphore);
       WANT(end_of(child) == 4, "it waits on");
       return ok();
     }},
    {"membarrier", "membarrier is there, and its private kind works",
     [] {
       long can = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
       NEED("membarrier", can);
       WANT(can & MEMBARRIER_CMD_PRIVATE_EXPEDITED, "no private kind");
       NEED("register", ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
       NEED("barrier", ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
       return ok();
     }},
    {"thread-rseq", "restartable sequences can be registered",
     [] {
       alignas(32) static char area[32];
       long done = 0;
       // The C library of a static program has registered one already: EBUSY or EINVAL say so.
       std::thread([&] { done = ::syscall(SYS_rseq, area, 32, 0, 0x53053053) < 0 ? errno : 0; }).join();
       if (done == ENOSYS) return failed("rseq", ENOSYS);
       WANT(done == 0 || done == EBUSY || done == EINVAL, "rseq: " + errno_name(static_cast<int>(done)));
       return ok();
     }},
};

}  // namespace

Checks thread_checks() { return kThreadChecks; }

}  // namespace isola::behaviour
