// Real servers in a network namespace of their own, for real clients inside sandboxes: nginx (http and https, files, a
// git repository, package indexes), sshd, PostgreSQL and a name server. Everything lies in one folder below /tmp and
// ends with the object.
//
//   NetServers servers(cable.outside);
//   if (!servers.missing().empty()) GTEST_SKIP() << servers.missing();
//   …--mount-ro servers.folder():/mnt…        // ca.pem (the test CA), key (for ssh)
//
// Names, all below example: a, c, x.wild and wild lead to 203.0.113.10; b and deep.x.wild to 203.0.113.11; six to
// 2001:db8:5::10 alone; inside to 10.5.0.1. Every server listens at every address of gate/outside.h.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "e2e/program.h"

namespace isola::e2e {

class NetServers {
 public:
  explicit NetServers(const Fd& netns);
  ~NetServers();
  NetServers(const NetServers&) = delete;
  NetServers& operator=(const NetServers&) = delete;

  const std::string& folder() const { return folder_; }
  // What this machine lacks for this, or could not be started; empty: all is there.
  const std::string& missing() const { return missing_; }

 private:
  void prepare();
  void make_certificates();
  void make_files();
  void make_packages();
  void start(const std::string& what, const Argv& argv, uint16_t port);
  void start_name_server();
  void start_nginx();
  void start_sshd();
  void start_postgres();
  void put(const std::string& path, const std::string& text, unsigned mode = 0644);
  bool sh(const std::string& script);
  void lack(const std::string& what);

  const Fd& netns_;
  std::string folder_, missing_;
  bool made_run_sshd_ = false;
  std::vector<pid_t> servers_;
};

}  // namespace isola::e2e
