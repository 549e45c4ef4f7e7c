// A user namespace belongs to whoever makes it, and the kernel counts some things per owner (inotify instances, nested
// namespaces). criu makes the sandbox's as root: so all restored sandboxes would share those limits, with the host.
// ISOLA_CRIU_OWNER names the id that shall be its owner, as that of a cold one is.
#pragma once

namespace isola::preload {

// Around the clone: its effective ids are the owner's for as long as this lives. In the child, whose ids are those of a
// new namespace, there is nothing to give back.
class Owner {
 public:
  explicit Owner(bool makes_user_namespace);
  ~Owner();
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  void in_child();

 private:
  bool borrowed_ = false;
  int secure_ = 0, dumpable_ = 0;
  unsigned user_ = 0, group_ = 0;
};

}  // namespace isola::preload
