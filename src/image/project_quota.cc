#include "image/project_quota.h"

#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/quota.h>
#include <sys/random.h>
#include <sys/syscall.h>

#include <cstring>

#include "base/fd.h"
#include "kernel/fault.h"

#ifndef PRJQUOTA
#define PRJQUOTA 2
#endif

namespace isola::image {

namespace {

namespace fault = kernel::fault;

constexpr uint64_t kBlock = 512;  // the unit of the XFS-style calls, which ext4 answers too

Result<Fd> open_dir(const std::string& dir) {
  Fd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + dir);
  return fd;
}

int quota_call(int fd, int command, uint32_t project, void* data) {
  if (int e = fault::at("quotactl")) return errno = e, -1;
  return static_cast<int>(::syscall(SYS_quotactl_fd, fd, QCMD(command, PRJQUOTA), project, data));
}

}  // namespace

Result<void> check_project_quota(const std::string& dir) {
  ISOLA_TRY(Fd fd, open_dir(dir));
  fs_quota_statv state{};
  state.qs_version = FS_QSTATV_VERSION1;
  if (quota_call(fd.get(), Q_XGETQSTATV, 0, &state) < 0)
    return fail(Code::unsupported, "the filesystem of " + dir + " keeps no quotas", errno);
  if (!(state.qs_flags & FS_QUOTA_PDQ_ENFD))
    return fail(Code::unsupported, "project quotas are not enforced on the filesystem of " + dir);
  return {};
}

Result<uint64_t> project_limit(const std::string& dir, uint32_t project) {
  ISOLA_TRY(Fd fd, open_dir(dir));
  fs_disk_quota quota{};
  if (quota_call(fd.get(), Q_XGETQUOTA, project, &quota) < 0) {
    if (errno == ENOENT) return 0;
    return sys_error("cannot read a project quota");
  }
  return quota.d_blk_hardlimit * kBlock;
}

Result<LayerUsage> project_usage(const std::string& dir, uint32_t project) {
  ISOLA_TRY(Fd fd, open_dir(dir));
  fs_disk_quota quota{};
  if (quota_call(fd.get(), Q_XGETQUOTA, project, &quota) < 0) {
    if (errno == ENOENT) return LayerUsage{};
    return sys_error("cannot read a project quota");
  }
  return LayerUsage{.bytes = quota.d_bcount * kBlock, .inodes = quota.d_icount};
}

Result<uint32_t> free_project(const std::string& dir) {
  ISOLA_TRY(Fd fd, open_dir(dir));
  for (int attempt = 0; attempt < 1000; ++attempt) {
    uint32_t project = 0;
    if (::getrandom(&project, sizeof project, 0) != sizeof project) return sys_error("no random numbers");
    project = kProjectBase | (project & kProjectMask);
    fs_disk_quota quota{};
    if (quota_call(fd.get(), Q_XGETQUOTA, project, &quota) < 0) {
      if (errno == ENOENT) return project;
      return sys_error("cannot read a project quota");
    }
    if (!quota.d_bcount && !quota.d_icount && !quota.d_blk_hardlimit && !quota.d_ino_hardlimit) return project;
  }
  return fail(Code::exhausted, "no free project id");
}

Result<void> set_project(const std::string& folder, uint32_t project) {
  ISOLA_TRY(Fd fd, open_dir(folder));
  fsxattr attributes{};
  if (int e = fault::at("fssetxattr")) return sys_error("cannot set the project of " + folder, e);
  if (::ioctl(fd.get(), FS_IOC_FSGETXATTR, &attributes) < 0) return sys_error("cannot read the project of " + folder);
  attributes.fsx_projid = project;
  attributes.fsx_xflags |= FS_XFLAG_PROJINHERIT;
  if (::ioctl(fd.get(), FS_IOC_FSSETXATTR, &attributes) < 0) return sys_error("cannot set the project of " + folder);
  return {};
}

Result<uint32_t> project_of(const std::string& folder) {
  ISOLA_TRY(Fd fd, open_dir(folder));
  fsxattr attributes{};
  if (::ioctl(fd.get(), FS_IOC_FSGETXATTR, &attributes) < 0) return sys_error("cannot read the project of " + folder);
  if ((attributes.fsx_projid & ~kProjectMask) != kProjectBase)
    return fail(Code::not_found, folder + " has no project of ours");
  return attributes.fsx_projid;
}

Result<void> limit_project(const std::string& dir, uint32_t project, const LayerLimits& limits) {
  ISOLA_TRY(Fd fd, open_dir(dir));
  fs_disk_quota quota{};
  quota.d_version = FS_DQUOT_VERSION;
  quota.d_id = project;
  quota.d_flags = FS_PROJ_QUOTA;
  quota.d_fieldmask = FS_DQ_BHARD | FS_DQ_BSOFT | FS_DQ_IHARD | FS_DQ_ISOFT;
  quota.d_blk_hardlimit = quota.d_blk_softlimit = (limits.bytes + kBlock - 1) / kBlock;
  quota.d_ino_hardlimit = quota.d_ino_softlimit = limits.inodes;
  if (quota_call(fd.get(), Q_XSETQLIM, project, &quota) < 0) return sys_error("cannot limit a project");
  return {};
}

}  // namespace isola::image
