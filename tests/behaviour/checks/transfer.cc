// Bytes that go from one descriptor to another without a buffer of the program's.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../topics.h"
#include "inet.h"

namespace isola::behaviour {
namespace {

constexpr Check kTransferChecks[] = {
    {"sendfile-socket", "sendfile sends a file over a connection, from a position that it moves",
     [] {
       auto [near, far] = connected();
       int fd = scratch_file("0123456789");
       off_t at = 2;
       WANT(::sendfile(near, fd, &at, 5) == 5 && at == 7, "another number");
       WANT(::lseek(fd, 0, SEEK_CUR) == 0, "the file's own position moved");
       char text[6] = "";
       WANT(::recv(far, text, 5, MSG_WAITALL) == 5 && std::string(text) == "23456", "other bytes");
       return ok();
     }},
    {"sendfile-file", "sendfile copies from file to file",
     [] {
       int from = scratch_file("abc"), to = scratch_file("", "copy");
       WANT(::sendfile(to, from, nullptr, 100) == 3, "another number");
       WANT(slurp("copy") == "abc", "other bytes");
       return ok();
     }},
    {"sendfile-pipe", "sendfile fills a pipe",
     [] {
       int ends[2], from = scratch_file("abc");
       NEED("pipe", ::pipe(ends));
       NEED("sendfile", ::sendfile(ends[1], from, nullptr, 100));
       char text[4] = "";
       WANT(::read(ends[0], text, 3) == 3 && std::string(text) == "abc", "other bytes");
       return ok();
     }},
    {"splice-pipe-to-file", "splice empties a pipe into a file",
     [] {
       int ends[2], to = scratch_file();
       NEED("pipe", ::pipe(ends));
       NEED("write", ::write(ends[1], "abc", 3));
       NEED("splice", ::splice(ends[0], nullptr, to, nullptr, 100, 0));
       WANT(slurp("file") == "abc", "other bytes");
       return ok();
     }},
    {"splice-file-to-pipe", "splice fills a pipe from a file",
     [] {
       int ends[2], from = scratch_file("abcdef");
       NEED("pipe", ::pipe(ends));
       loff_t at = 2;
       NEED("splice", ::splice(from, &at, ends[1], nullptr, 3, 0));
       char text[4] = "";
       WANT(::read(ends[0], text, 3) == 3 && std::string(text) == "cde" && at == 5, "other bytes");
       return ok();
     }},
    {"splice-socket", "splice goes from a connection to a pipe and on to another",
     [] {
       auto one = connected(), two = connected();
       int ends[2];
       NEED("pipe", ::pipe(ends));
       NEED("send", ::send(one.near, "abc", 3, 0));
       NEED("splice in", ::splice(one.far, nullptr, ends[1], nullptr, 100, 0));
       NEED("splice out", ::splice(ends[0], nullptr, two.near, nullptr, 100, 0));
       char text[4] = "";
       WANT(::recv(two.far, text, 3, MSG_WAITALL) == 3 && std::string(text) == "abc", "other bytes");
       return ok();
     }},
    {"tee", "tee copies a pipe and leaves it full",
     [] {
       int a[2], b[2];
       NEED("pipe", ::pipe(a));
       NEED("pipe", ::pipe(b));
       NEED("write", ::write(a[1], "abc", 3));
       WANT(::tee(a[0], b[1], 100, 0) == 3, "tee");
       char text[4] = "";
       WANT(::read(a[0], text, 3) == 3 && ::read(b[0], text, 3) == 3, "one is empty");
       return ok();
     }},
    {"vmsplice", "vmsplice puts memory into a pipe",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       char text[] = "abc", got[4] = "";
       iovec out{text, 3};
       NEED("vmsplice", ::vmsplice(ends[1], &out, 1, 0));
       WANT(::read(ends[0], got, 3) == 3 && std::string(got) == "abc", "other bytes");
       return ok();
     }},
    {"copy-file-range", "copy_file_range copies a part, with positions of its own",
     [] {
       int from = scratch_file("0123456789"), to = scratch_file("xxxxx", "copy");
       loff_t in = 3, out = 1;
       NEED("copy_file_range", ::copy_file_range(from, &in, to, &out, 3, 0));
       WANT(slurp("copy") == "x345x" && in == 6 && out == 4, "other bytes");
       return ok();
     }},
    {"clone-file", "FICLONE works, or says that this filesystem cannot",
     [] {
       int from = scratch_file("abc"), to = scratch_file("", "copy");
       int done = ::ioctl(to, FICLONE, from);
       WANT(done == 0 || errno == EOPNOTSUPP || errno == ENOTTY || errno == EXDEV, "FICLONE: " + errno_name(errno));
       return ok();
     }},
    {"socket-zero-copy", "MSG_ZEROCOPY is taken",
     [] {
       auto [near, far] = connected();
       NEED("SO_ZEROCOPY", set_option(near, SOL_SOCKET, SO_ZEROCOPY, 1));
       NEED("send", ::send(near, "abc", 3, MSG_ZEROCOPY));
       return ok();
     }},
};

}  // namespace

Checks transfer_checks() { return kTransferChecks; }

}  // namespace isola::behaviour
