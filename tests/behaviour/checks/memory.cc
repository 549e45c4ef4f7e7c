#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

constexpr size_t kPage = 4096;

char* map(size_t size, int protection = PROT_READ | PROT_WRITE, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int fd = -1) {
  void* at = ::mmap(nullptr, size, protection, flags, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
}
void touch(char* at) { *static_cast<volatile char*>(at) = 1; }

constexpr Check kMemoryChecks[] = {
    {"memory-zero", "new memory is zero",
     [] {
       char* at = map(64 * kPage);
       if (!at) return failed("mmap");
       for (size_t i = 0; i < 64 * kPage; ++i) WANT(at[i] == 0, "it is not");
       return ok();
     }},
    {"memory-shared", "shared memory is one after fork, private is two",
     [] {
       char *one = map(kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS), *two = map(kPage);
       if (!one || !two) return failed("mmap");
       in_child([&] { return one[0] = two[0] = 1, 0; });
       WANT(one[0] == 1 && two[0] == 0, "the other way round");
       return ok();
     }},
    {"memory-file-shared", "a shared mapping of a file and its contents are the same",
     [] {
       int fd = scratch_file(std::string(kPage, 'a'));
       char* at = map(kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
       if (!at) return failed("mmap");
       at[5] = 'X';
       char c = 0;
       NEED("pread", ::pread(fd, &c, 1, 5));
       WANT(c == 'X', "a store is not read");
       NEED("pwrite", ::pwrite(fd, "Y", 1, 6));
       WANT(at[6] == 'Y', "a write is not loaded");
       NEED("msync", ::msync(at, kPage, MS_SYNC));
       return ok();
     }},
    {"memory-file-two-processes", "two processes that map a file see each other's stores",
     [] {
       int fd = scratch_file(std::string(kPage, 'a'));
       char* at = map(kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
       if (!at) return failed("mmap");
       int code = in_child([] {
         int own_fd = ::open("file", O_RDWR);
         char* here = map(kPage, PROT_READ | PROT_WRITE, MAP_SHARED, own_fd);
         here[1] = 'b';
         return 0;
       });
       WANT(code == 0 && at[1] == 'b', "they do not");
       return ok();
     }},
    {"memory-file-private", "stores to a private mapping stay out of the file",
     [] {
       int fd = scratch_file(std::string(kPage, 'a'));
       char* at = map(kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
       if (!at) return failed("mmap");
       at[0] = 'X';
       WANT(slurp("file")[0] == 'a', "the file changed");
       return ok();
     }},
    {"memory-behind-the-end", "a page behind the end of a file is SIGBUS",
     [] {
       int fd = scratch_file("abc");
       char* at = map(2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
       if (!at) return failed("mmap");
       WANT(at[10] == 0, "the rest of the last page is not zero");
       WANT(in_child([&] { return touch(at + kPage), 0; }) == 128 + SIGBUS, "no SIGBUS");
       return ok();
     }},
    {"memory-grow", "mremap makes a mapping longer and keeps its contents",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       at[7] = 'x';
       void* more = ::mremap(at, kPage, 64 * kPage, MREMAP_MAYMOVE);
       if (more == MAP_FAILED) return failed("mremap");
       auto* now = static_cast<char*>(more);
       WANT(now[7] == 'x' && now[63 * kPage] == 0, "other contents");
       return ok();
     }},
    {"memory-protect", "mprotect is kept to",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       NEED("mprotect", ::mprotect(at, kPage, PROT_READ));
       WANT(in_child([&] { return touch(at), 0; }) == 128 + SIGSEGV, "a read-only page was written");
       NEED("mprotect", ::mprotect(at, kPage, PROT_READ | PROT_WRITE));
       touch(at);
       return ok();
     }},
    {"memory-code", "memory that was written can be made executable, as compilers at run time do",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       ::memcpy(at, "\xb8\x2a\x00\x00\x00\xc3", 6);  // mov eax, 42; ret
       NEED("mprotect", ::mprotect(at, kPage, PROT_READ | PROT_EXEC));
       WANT(reinterpret_cast<int (*)()>(at)() == 42, "another result");
       return ok();
     }},
    {"memory-write-execute", "memory can be writable and executable at once",
     [] {
       char* at = map(kPage, PROT_READ | PROT_WRITE | PROT_EXEC);
       if (!at) return failed("mmap");
       for (char value : {1, 2}) {
         char code[] = {'\xb8', value, 0, 0, 0, '\xc3'};
         ::memcpy(at, code, sizeof code);
         WANT(reinterpret_cast<int (*)()>(at)() == value, "the old code ran");
       }
       return ok();
     }},
    {"memory-no-replace", "MAP_FIXED_NOREPLACE does not map over something",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       void* again = ::mmap(at, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
       REFUSED("mmap", again == MAP_FAILED ? -1 : 0, EEXIST);
       return ok();
     }},
    {"memory-forget", "MADV_DONTNEED gives zeros back",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       at[0] = 1;
       NEED("madvise", ::madvise(at, kPage, MADV_DONTNEED));
       WANT(at[0] == 0, "the old byte");
       return ok();
     }},
    {"memory-free", "MADV_FREE and MADV_HUGEPAGE are taken",
     [] {
       char* at = map(4 << 20);
       if (!at) return failed("mmap");
       NEED("MADV_FREE", ::madvise(at, kPage, MADV_FREE));
       NEED("MADV_HUGEPAGE", ::madvise(at, 4 << 20, MADV_HUGEPAGE));
       return ok();
     }},
    {"memory-not-in-the-child", "MADV_DONTFORK keeps memory out of children",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       NEED("madvise", ::madvise(at, kPage, MADV_DONTFORK));
       WANT(in_child([&] { return touch(at), 0; }) == 128 + SIGSEGV, "the child has it");
       return ok();
     }},
    {"memory-wiped-in-the-child", "MADV_WIPEONFORK gives children zeros",
     [] {
       char* at = map(kPage);
       if (!at) return failed("mmap");
       at[0] = 1;
       NEED("madvise", ::madvise(at, kPage, MADV_WIPEONFORK));
       WANT(in_child([&] { return static_cast<int>(at[0]); }) == 0, "the child has the byte");
       return ok();
     }},
    {"memory-reserve", "a terabyte of addresses can be reserved, as Go, Java and sanitizers do",
     [] {
       if (!map(1ull << 40, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)) return failed("mmap");
       return ok();
     }},
    {"memory-present", "mincore tells which pages are there",
     [] {
       char* at = map(2 * kPage);
       if (!at) return failed("mmap");
       touch(at);
       unsigned char there[2] = {};
       NEED("mincore", ::mincore(at, 2 * kPage, there));
       WANT((there[0] & 1) == 1, "a touched page is not there");
       WANT((there[1] & 1) == 0, "an untouched page is there");
       return ok();
     }},
    {"memory-lock", "mlock works for a few pages",
     [] {
       char* at = map(4 * kPage);
       if (!at) return failed("mmap");
       NEED("mlock", ::mlock(at, 4 * kPage));
       NEED("munlock", ::munlock(at, 4 * kPage));
       return ok();
     }},
    {"memory-break", "brk moves the end of the heap",
     [] {
       void* was = ::sbrk(0);
       WANT(::sbrk(1 << 20) == was, "sbrk");
       touch(static_cast<char*>(was) + (1 << 19));
       return ok();
     }},
    {"memory-stack-grows", "the stack grows to megabytes",
     [] {
       struct Deep {
         static int go(int n) {
           volatile char room[4096];
           room[0] = static_cast<char>(n);
           return n == 0 ? room[0] : go(n - 1) + room[0];
         }
       };
       WANT(in_child([] { return Deep::go(1200) >= 0 ? 3 : 3; }) == 3, "it did not");
       return ok();
     }},
    {"memory-maps", "/proc/self/maps shows a mapping with its file and rights",
     [] {
       int fd = scratch_file(std::string(kPage, 'a'), "mapped-file");
       char* at = map(kPage, PROT_READ, MAP_PRIVATE, fd);
       if (!at) return failed("mmap");
       std::string maps = slurp("/proc/self/maps");
       size_t name = maps.find("mapped-file");
       WANT(name != std::string::npos, "the file is not listed");
       size_t line = maps.rfind('\n', name);
       WANT(maps.substr(line, name - line).find(" r--p ") != std::string::npos, "other rights");
       return ok();
     }},
    {"memory-hole", "a truncated file takes its mapped pages along",
     [] {
       int fd = scratch_file(std::string(2 * kPage, 'a'));
       char* at = map(2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
       if (!at) return failed("mmap");
       touch(at + kPage);
       NEED("ftruncate", ::ftruncate(fd, static_cast<off_t>(kPage)));
       WANT(in_child([&] { return touch(at + kPage), 0; }) == 128 + SIGBUS, "no SIGBUS");
       return ok();
     }},
    {"memory-pkeys", "protection keys answer, with a key or with ENOSPC",
     [] {
       int key = ::pkey_alloc(0, 0);
       WANT(key >= 0 || errno == ENOSPC || errno == EINVAL, "pkey_alloc: " + errno_name(errno));
       return ok();
     }},
};

}  // namespace

Checks memory_checks() { return kMemoryChecks; }

}  // namespace isola::behaviour
