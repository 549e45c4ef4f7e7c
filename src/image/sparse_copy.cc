#include "image/sparse_copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

Result<void> copy_data(int in, int out, off_t size) {
  for (off_t at = 0; at < size;) {
    off_t data = ::lseek(in, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {};  // only a hole is left
    if (data < 0) return sys_error("cannot look for data");
    off_t end = ::lseek(in, data, SEEK_HOLE);
    if (end < 0) return sys_error("cannot look for a hole");
    off_t to = data;
    while (data < end) {
      ssize_t n = ::copy_file_range(in, &data, out, &to, static_cast<size_t>(end - data), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return sys_error("cannot copy data");
      if (n == 0) return fail(Code::internal, "the file became shorter");
    }
    at = end;
  }
  return {};
}

}  // namespace

Result<void> sparse_copy(const std::string& from, const std::string& to) {
  Fd in(::open(from.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st;
  if (!in || ::fstat(in.get(), &st) < 0) return sys_error("cannot open " + from);
  if (int e = fault::at("create_file")) return sys_error("cannot create " + to, e);
  Fd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!out) return sys_error("cannot create " + to);
  auto copied = [&]() -> Result<void> {
    if (::ioctl(out.get(), FICLONE, in.get()) == 0) return {};
    if (int e = fault::at("ftruncate")) return sys_error("cannot size " + to, e);
    if (::ftruncate(out.get(), st.st_size) < 0) return sys_error("cannot size " + to);
    return copy_data(in.get(), out.get(), st.st_size);
  }();
  if (!copied) ::unlink(to.c_str());
  return copied;
}

bool can_reflink(const std::string& folder) {
  Fd from(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  Fd to(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  return from && to && ::pwrite(from.get(), "x", 1, 0) == 1 && ::ioctl(to.get(), FICLONE, from.get()) == 0;
}

}  // namespace isola::image
