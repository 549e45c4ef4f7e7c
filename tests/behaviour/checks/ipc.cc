// Objects that several processes share by a name or a key.
#include <fcntl.h>
#include <mqueue.h>
#include <semaphore.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

std::string unique() { return "/isola-check-" + std::to_string(::getpid()); }

constexpr Check kIpcChecks[] = {
    {"shm-named", "shm_open: two processes share memory by name",
     [] {
       std::string name = unique();
       int fd = ::shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
       NEED("shm_open", fd);
       NEED("ftruncate", ::ftruncate(fd, 4096));
       auto* at = static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
       in_child([&] {
         int own_fd = ::shm_open(name.c_str(), O_RDWR, 0);
         auto* there = static_cast<char*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own_fd, 0));
         ::strcpy(there, "child");
         return 0;
       });
       ::shm_unlink(name.c_str());
       WANT(std::string(at) == "child", "they do not");
       return ok();
     }},
    {"semaphore-named", "sem_open: two processes wait for each other by name",
     [] {
       std::string name = unique();
       sem_t* semaphore = ::sem_open(name.c_str(), O_CREAT | O_EXCL, 0600, 0);
       if (semaphore == SEM_FAILED) return failed("sem_open");
       pid_t child = begin_child([&] { return ::sem_post(::sem_open(name.c_str(), 0)) == 0 ? 0 : 1; });
       int waited = ::sem_wait(semaphore);
       ::sem_unlink(name.c_str());
       WANT(waited == 0 && end_of(child) == 0, "they do not");
       return ok();
     }},
    {"message-queue", "a POSIX queue gives the most urgent message first",
     [] {
       std::string name = unique();
       mq_attr how{};
       how.mq_maxmsg = 5, how.mq_msgsize = 16;
       mqd_t queue = ::mq_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600, &how);
       NEED("mq_open", queue);
       ::mq_send(queue, "low", 3, 1);
       ::mq_send(queue, "high", 4, 9);
       char text[16] = "";
       unsigned priority = 0;
       ssize_t n = ::mq_receive(queue, text, sizeof text, &priority);
       ::mq_unlink(name.c_str());
       WANT(n == 4 && priority == 9, "another message");
       return ok();
     }},
    {"sysv-memory", "System V shared memory is shared, and goes with its last user",
     [] {
       int id = ::shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
       NEED("shmget", id);
       auto* at = static_cast<char*>(::shmat(id, nullptr, 0));
       ::shmctl(id, IPC_RMID, nullptr);
       if (at == reinterpret_cast<char*>(-1)) return failed("shmat");
       in_child([&] { return at[0] = 'c', 0; });
       WANT(at[0] == 'c', "it is not shared");
       return ok();
     }},
    {"sysv-semaphore", "a System V semaphore waits, and SEM_UNDO gives back what a dead process took",
     [] {
       int id = ::semget(IPC_PRIVATE, 1, IPC_CREAT | 0600);
       NEED("semget", id);
       ::semctl(id, 0, SETVAL, 1);
       in_child([&] {
         sembuf take{0, -1, SEM_UNDO};
         return ::semop(id, &take, 1);
       });
       int value = ::semctl(id, 0, GETVAL);
       ::semctl(id, 0, IPC_RMID);
       WANT(value == 1, "it is not given back");
       return ok();
     }},
    {"sysv-queue", "a System V queue gives messages by type",
     [] {
       int id = ::msgget(IPC_PRIVATE, IPC_CREAT | 0600);
       NEED("msgget", id);
       struct {
         long type;
         char text[8];
       } one{1, "one"}, two{2, "two"}, got{};
       ::msgsnd(id, &one, sizeof one.text, 0);
       ::msgsnd(id, &two, sizeof two.text, 0);
       ssize_t n = ::msgrcv(id, &got, sizeof got.text, 2, 0);
       ::msgctl(id, IPC_RMID, nullptr);
       WANT(n == sizeof got.text && std::string(got.text) == "two", "another message");
       return ok();
     }},
};

}  // namespace

Checks ipc_checks() { return kIpcChecks; }

}  // namespace isola::behaviour
