// Process 1 of a kernel that is booted by hand: says hello, or runs /script on the disk that it was given, below a layer
// in memory; then it switches the machine off.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void off(void) {
  sync();
  reboot(RB_POWER_OFF);
  for (;;) pause();
}

static void must(int result, const char* what) {
  if (result == 0) return;
  const char* end = what;
  while (*end) ++end;
  if (write(1, what, (size_t)(end - what)) < 0) _exit(1);
  off();
}

int main(void) {
  static char script[65536];
  int fd = open("/script", O_RDONLY);
  if (fd < 0) {
    if (write(1, "hello\n", 6) != 6) _exit(1);
    off();
  }
  ssize_t size = read(fd, script, sizeof script - 1);
  script[size > 0 ? size : 0] = 0;
  const char* folders[] = {"/dev", "/lower", "/rw", "/new"};
  for (int i = 0; i < 4; ++i) mkdir(folders[i], 0755);
  must(mount("devtmpfs", "/dev", "devtmpfs", 0, 0), "no devices\n");
  must(mount("/dev/ubda", "/lower", "erofs", MS_RDONLY, 0), "no disk\n");
  must(mount("tmpfs", "/rw", "tmpfs", 0, "size=80%"), "no layer\n");
  mkdir("/rw/upper", 0755);
  mkdir("/rw/work", 0755);
  must(mount("overlay", "/new", "overlay", 0, "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work"), "no overlay\n");
  must(mount("proc", "/new/proc", "proc", 0, 0), "no /proc\n");
  must(mount("devtmpfs", "/new/dev", "devtmpfs", 0, 0), "no /dev\n");
  must(chroot("/new"), "no root\n");
  must(chdir("/"), "no folder\n");
  pid_t child = fork();
  if (child == 0) {
    char* environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root", 0};
    char* argv[] = {"sh", "-c", script, 0};
    execve("/bin/sh", argv, environment);
    _exit(127);
  }
  waitpid(child, 0, 0);
  off();
}
