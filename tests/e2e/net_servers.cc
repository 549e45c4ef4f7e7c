#include "e2e/net_servers.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gate/address.h"
#include "gate/outside.h"

namespace isola::e2e {

namespace fs = std::filesystem;

namespace {

constexpr char kHttpAddress[] = "203.0.113.10";

std::string found(const std::string& pattern) {
  auto done = run_program({"sh", "-c", "ls -d " + pattern + " 2>/dev/null | sort -V | tail -n 1"});
  while (done.out.ends_with('\n')) done.out.pop_back();
  return done.out;
}

bool answers(const Fd& netns, const char* at, uint16_t port) {
  bool good = false;
  gate::in_netns(netns, [&] {
    auto to = gate::Address::parse(at)->with_port(port);
    Fd fd(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    good = fd && ::connect(fd.get(), to.get(), to.size) == 0;
  });
  return good;
}

}  // namespace

NetServers::NetServers(const Fd& netns) : netns_(netns) {
  char name[] = "/tmp/isl-servers-XXXXXX";
  if (!::mkdtemp(name)) std::abort();
  ::chmod(name, 0755);
  folder_ = name;
  for (const char* program : {"nginx", "dnsmasq", "sshd", "ssh-keygen", "openssl", "git", "setpriv", "dpkg-deb"})
    if (found(fmt::format("/usr/sbin/{0} /usr/bin/{0}", program)).empty()) lack(std::string("there is no ") + program);
  if (found("/usr/lib/postgresql/*/bin/postgres").empty()) lack("there is no PostgreSQL");
  // Root's account may be locked, and then nobody gets in by ssh.
  std::ifstream shadow("/etc/shadow");
  for (std::string line; std::getline(shadow, line);)
    if (line.starts_with("root:!")) lack("the account of root is locked, so sshd lets nobody in");
  if (missing_.empty()) prepare();
}

NetServers::~NetServers() {
  for (pid_t pid : servers_) ::kill(pid, SIGTERM);
  for (pid_t pid : servers_) ::waitpid(pid, nullptr, 0);
  if (made_run_sshd_) ::rmdir("/run/sshd");
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void NetServers::lack(const std::string& what) { missing_ += (missing_.empty() ? "" : "; ") + what; }

void NetServers::put(const std::string& path, const std::string& text, unsigned mode) {
  fs::create_directories(fs::path(folder_ + "/" + path).parent_path());
  std::ofstream(folder_ + "/" + path) << text;
  ::chmod((folder_ + "/" + path).c_str(), mode);
}

bool NetServers::sh(const std::string& script) {
  auto done = run_program({"sh", "-euc", "cd " + folder_ + "\n" + script});
  if (done.code != 0) lack("preparing failed: " + done.text());
  return done.code == 0;
}

void NetServers::prepare() {
  make_certificates();
  make_files();
  make_packages();
  if (missing_.empty()) start_name_server();
  if (missing_.empty()) start_nginx();
  if (missing_.empty()) start_sshd();
  if (missing_.empty()) start_postgres();
}

// A CA of our own and one certificate for all names and addresses.
void NetServers::make_certificates() {
  put("names.cnf",
      "subjectAltName=DNS:example,DNS:a.example,DNS:b.example,DNS:c.example,DNS:wild.example,DNS:*.wild.example,"
      "DNS:deep.x.wild.example,DNS:six.example,DNS:inside.example,IP:203.0.113.10,IP:203.0.113.11\n");
  sh("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj '/CN=a test' "
     "-keyout ca.key -out ca.pem -addext basicConstraints=critical,CA:TRUE 2>&1\n"
     "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '/CN=a.example' -keyout server.key "
     "-out server.csr 2>&1\n"
     "openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names.cnf "
     "-out server.pem 2>&1");
}

void NetServers::make_files() {
  put("www/index.html", "hello from nginx\n");
  // The "dumb" protocol of git needs nothing but files.
  sh("git init -q --bare -b hello www/repo.git\n"
     "export GIT_DIR=www/repo.git GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example GIT_COMMITTER_NAME=t "
     "GIT_COMMITTER_EMAIL=t@example\n"
     "commit=$(git commit-tree -m hello $(git hash-object -t tree -w /dev/null))\n"
     "git update-ref refs/heads/hello $commit\ngit update-server-info\nchmod -R a+rX www");
}

// One package of each kind, as small as it can be.
void NetServers::make_packages() {
  put("deb/DEBIAN/control",
      "Package: isola-hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
      "Description: a test\n");
  put("wheel.py", R"(
import zipfile, sys, hashlib, tarfile, io, json, base64
z = zipfile.ZipFile('www/simple/isola-hello/isola_hello-1.0-py3-none-any.whl', 'w')
z.writestr('isola_hello.py', 'word = "hello"\n')
i = 'isola_hello-1.0.dist-info/'
z.writestr(i + 'METADATA', 'Metadata-Version: 2.1\nName: isola-hello\nVersion: 1.0\n')
z.writestr(i + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
z.writestr(i + 'RECORD', 'isola_hello.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n' % (i, i, i))
z.close()
open('www/simple/isola-hello/index.html', 'w').write('<a href="isola_hello-1.0-py3-none-any.whl">isola_hello-1.0-py3-none-any.whl</a>')
manifest = {'name': 'isola-hello', 'version': '1.0.0', 'main': 'index.js'}
t = tarfile.open('www/npm/isola-hello-1.0.0.tgz', 'w:gz')
for name, text in (('package/package.json', json.dumps(manifest)), ('package/index.js', 'module.exports = "hello"')):
    info = tarfile.TarInfo(name)
    info.size = len(text)
    t.addfile(info, io.BytesIO(text.encode()))
t.close()
bytes = open('www/npm/isola-hello-1.0.0.tgz', 'rb').read()
dist = {'integrity': 'sha512-' + base64.b64encode(hashlib.sha512(bytes).digest()).decode()}
for host in ('a', 'b', 'c', 'x.wild', 'wild'):
    dist['tarball'] = 'https://%s.example/npm/isola-hello-1.0.0.tgz' % host
    open('www/npm/isola-hello.' + host + '.example', 'w').write(json.dumps({'name': 'isola-hello', 'dist-tags': {'latest': '1.0.0'}, 'versions': {'1.0.0': dict(manifest, dist=dist)}}))
)");
  sh("mkdir -p www/simple/isola-hello www/npm www/apt\npython3 wheel.py\n"
     "dpkg-deb --root-owner-group --build deb www/apt/isola-hello_1.0_all.deb >/dev/null\n"
     "{ cat deb/DEBIAN/control; echo Filename: ./isola-hello_1.0_all.deb; "
     "echo Size: $(stat -c %s www/apt/isola-hello_1.0_all.deb); "
     "echo SHA256: $(sha256sum www/apt/isola-hello_1.0_all.deb | cut -d' ' -f1); echo; } > www/apt/Packages\n"
     "chmod -R a+rX www");
}

// Starts a server in the namespace and waits until it answers.
void NetServers::start(const std::string& what, const Argv& argv, uint16_t port) {
  pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int log = ::open((folder_ + "/" + what + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(log, 1), ::dup2(log, 2);
    std::vector<char*> words;
    for (const auto& word : argv) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    if (::setns(netns_.get(), CLONE_NEWNET) == 0) ::execvp(words[0], words.data());
    ::_exit(127);
  }
  servers_.push_back(pid);
  bool ended = false;
  bool good = eventually([&] {
    ended = ::waitpid(pid, nullptr, WNOHANG) == pid;
    return ended || answers(netns_, port == 53 ? gate::kNameServer : kHttpAddress, port);
  });
  if (ended) servers_.pop_back();
  if (ended || !good) {
    std::ifstream log(folder_ + "/" + what + ".log");
    lack(what + " did not start: " + std::string(std::istreambuf_iterator<char>(log), {}));
  }
}

void NetServers::start_name_server() {
  std::string config = fmt::format(
      "no-resolv\nno-hosts\nno-daemon\nuser=nobody\npid-file=\nbind-interfaces\nlisten-address={0}\n"
      "auth-server=ns.example,{0}\nauth-zone=example\n",
      gate::kNameServer);
  auto record = [&](const char* name, const char* address) {
    config += fmt::format("host-record={}.example,{}\n", name, address);
  };
  for (const char* name : {"a", "c", "x.wild", "wild"}) record(name, "203.0.113.10");
  for (const char* name : {"b", "deep.x.wild"}) record(name, "203.0.113.11");
  record("six", "2001:db8:5::10");
  record("inside", "10.5.0.1");
  put("dnsmasq.conf", config);
  start("dnsmasq", {"dnsmasq", "--conf-file=" + folder_ + "/dnsmasq.conf"}, 53);
}

void NetServers::start_nginx() {
  put("nginx.conf",
      fmt::format("daemon off; user nobody nogroup; worker_processes 1; error_log stderr warn; pid {0}/nginx.pid;\n"
                  "events {{ worker_connections 512; }}\n"
                  "http {{\n  access_log off; default_type text/html;\n"
                  "  client_body_temp_path {0}/t1; proxy_temp_path {0}/t2; fastcgi_temp_path {0}/t3; uwsgi_temp_path "
                  "{0}/t4; scgi_temp_path {0}/t5;\n"
                  "  server {{\n    listen 80; listen [::]:80; listen 443 ssl; listen [::]:443 ssl; listen 8080;\n"
                  "    ssl_certificate {0}/server.pem; ssl_certificate_key {0}/server.key;\n"
                  "    root {0}/www;\n"
                  "    location = /npm/isola-hello {{ default_type application/json; try_files "
                  "/npm/isola-hello.$host =404; }}\n  }}\n}}\n",
                  folder_));
  start("nginx", {"nginx", "-e", "stderr", "-c", folder_ + "/nginx.conf"}, 443);
}

// Whoever comes with our key gets a word, or the repository; never a shell.
void NetServers::start_sshd() {
  sh("ssh-keygen -q -t ed25519 -N '' -f host_key\nssh-keygen -q -t ed25519 -N '' -f key\nchmod 644 key\n"
     "cp key.pub authorized_keys");
  put("ssh_command",
      fmt::format("#!/bin/sh\ncase \"$SSH_ORIGINAL_COMMAND\" in\n  git-upload-pack*) exec git-upload-pack "
                  "{}/www/repo.git ;;\n  *) echo hello from sshd ;;\nesac\n",
                  folder_),
      0755);
  put("sshd_config",
      fmt::format("Port 22\nListenAddress 0.0.0.0\nListenAddress ::\nHostKey {0}/host_key\nPidFile none\nUsePAM no\n"
                  "StrictModes no\nPermitRootLogin prohibit-password\n"
                  "PasswordAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile {0}/authorized_keys\n"
                  "ForceCommand {0}/ssh_command\nAllowTcpForwarding no\nPermitTTY no\n",
                  folder_));
  made_run_sshd_ = ::mkdir("/run/sshd", 0755) == 0;
  start("sshd", {found("/usr/sbin/sshd"), "-D", "-e", "-f", folder_ + "/sshd_config"}, 22);
}

void NetServers::start_postgres() {
  std::string bin = found("/usr/lib/postgresql/*/bin");
  // It refuses to be root.
  Argv nobody = {"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"};
  sh(
      fmt::format("mkdir pg && chown 65534:65534 pg && cd pg && setpriv --reuid=65534 --regid=65534 --clear-groups "
                  "{}/initdb -D {}/pg -U test -A trust --no-sync --locale=C >/dev/null\n"
                  "printf 'host all all 0.0.0.0/0 trust\\nhost all all ::/0 trust\\n' >> pg_hba.conf\n"
                  "install -o 65534 -g 65534 -m 600 ../server.key server.key\n"
                  "install -o 65534 -g 65534 -m 644 ../server.pem server.crt",
                  bin, folder_));
  if (!missing_.empty()) return;
  Argv argv = nobody;
  argv.insert(argv.end(), {bin + "/postgres", "-D", folder_ + "/pg", "-c", "listen_addresses=*", "-c",
                           "unix_socket_directories=", "-c", "fsync=off", "-c", "ssl=on", "-p", "5432"});
  start("postgres", argv, 5432);
}

}  // namespace isola::e2e
