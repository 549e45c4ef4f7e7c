// Programs that people use, inside a sandbox, against servers that people use, with a policy between: every kind of
// rule, for every protocol, by name. And the package managers through the preset `package-registries`, against what
// this machine itself is configured to use.
#include <fmt/format.h>
#include <sched.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "e2e/island.h"
#include "e2e/net_servers.h"
#include "gate/outside.h"

namespace isola::e2e {
namespace {

// Tries every client on every target: "CLIENT TARGET yes|no" a line, or "CLIENT - missing". yes: it ended well, and
// what it printed came from the server.
constexpr char kScript[] = R"(
export HOME=/tmp TMPDIR=/tmp GIT_TERMINAL_PROMPT=0 PGCONNECT_TIMEOUT=15 PIP_NO_INPUT=1
unset http_proxy https_proxy HTTP_PROXY HTTPS_PROXY SSL_CERT_FILE SSL_CERT_DIR PIP_CERT PIP_FIND_LINKS PIP_INDEX_URL
echo nameserver 10.255.255.254 > /etc/resolv.conf
cd /tmp; cp /mnt/key key; chmod 600 key
ca=/mnt/ca.pem
ssh_options="-F none -i /tmp/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=15 -o LogLevel=ERROR"
client() {  # client NAME HOST
  case $1 in
    curl-http) curl -sS --noproxy '*' http://$2/ ;;
    curl-https) curl -sS --noproxy '*' --cacert $ca https://$2/ ;;
    curl-8080) curl -sS --noproxy '*' http://$2:8080/ ;;
    urllib-http) python3 -c 'import sys, urllib.request as u; print(u.urlopen("http://" + sys.argv[1] + "/").read())' $2 ;;
    urllib-https) python3 -c 'import ssl, sys, urllib.request as u
print(u.urlopen("https://" + sys.argv[1] + "/", context=ssl.create_default_context(cafile="/mnt/ca.pem")).read())' $2 ;;
    node-http) node -e 'fetch("http://" + process.argv[1] + "/").then(r => r.text()).then(console.log)' $2 ;;
    node-https) NODE_EXTRA_CA_CERTS=$ca node -e 'fetch("https://" + process.argv[1] + "/").then(r => r.text()).then(console.log)' $2 ;;
    git-http) git ls-remote http://$2/repo.git ;;
    git-https) GIT_SSL_CAINFO=$ca git ls-remote https://$2/repo.git ;;
    git-ssh) GIT_SSH_COMMAND="ssh $ssh_options" git ls-remote ssh://root@$2/repo.git ;;
    ssh) ssh $ssh_options root@$2 true ;;
    psql) PGSSLMODE=disable psql "host=$2 user=test dbname=postgres" -Atc "select 'hel' || 'lo'" ;;
    psql-tls) PGSSLMODE=require psql "host=$2 user=test dbname=postgres" -Atc "select 'hel' || 'lo'" ;;
    openssl) case $2 in *[a-z]*) sni="-servername $2" ;; *) sni=-noservername ;; esac
      printf 'GET / HTTP/1.0\r\nHost: %s\r\n\r\n' $2 | openssl s_client -quiet -verify_return_error -verify_quiet -CAfile $ca $sni -connect $2:443 ;;
    pip) rm -rf w; python3 -m pip download -q --no-cache-dir --no-deps --retries 0 --disable-pip-version-check --cert $ca -i https://$2/simple -d w isola-hello && ls w ;;
    npm) rm -rf n; mkdir n; cd n; npm install --silent --no-audit --no-fund --fetch-retries=0 --cafile=$ca --registry=https://$2/npm/ isola-hello && cat node_modules/isola-hello/index.js; cd .. ;;
    apt-get) rm -rf apt; mkdir -p apt/lists/partial apt/archives/partial; echo "deb [trusted=yes] http://$2/apt ./" > apt/list
      apt="apt-get -qq -o Dir::Etc::sourcelist=/tmp/apt/list -o Dir::Etc::sourceparts=- -o Dir::State::lists=/tmp/apt/lists -o Dir::Cache::archives=/tmp/apt/archives -o Acquire::Languages=none -o APT::Update::Error-Mode=any -o Acquire::Retries=0 -o APT::Sandbox::User=root"
      $apt update && (cd apt && $apt download isola-hello && ls *.deb) ;;
  esac
}
for name in $clients; do
  program=${name%%-http*}; program=${program%%-8080}
  case $name in urllib-*) program=python3 ;; git-ssh) program=git ;; psql-tls) program=psql ;; pip) program=python3 ;; apt-get) program=apt-get ;; esac
  if ! command -v $program >/dev/null || { [ $name = pip ] && ! python3 -m pip --version >/dev/null 2>&1; }; then
    echo "$name - missing"; continue
  fi
  for target in $targets; do
    if client $name $target >out 2>err </dev/null && grep -q hello out; then
      echo "$name $target yes"
    else
      echo "$name $target no"
      { echo "--- $name $target:"; tail -n 3 err; } >&2
    fi
  done
done
)";

constexpr char kHttp[] = "curl-http urllib-http node-http git-http apt-get";
constexpr char kHttps[] = "curl-https urllib-https node-https git-https openssl pip npm";
constexpr char kOthers[] = "ssh git-ssh psql psql-tls";

class NetClients : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (digest_of("minimal").empty() || ::geteuid() != 0) return;
    home = gate::own_netns();
    auto made = gate::Cable::make();
    ASSERT_OK(made);
    cable = std::move(*made);
    servers = std::make_unique<NetServers>(cable->outside);
    ASSERT_EQ(::setns(cable->gate.get(), CLONE_NEWNET), 0);
    island =
        std::make_unique<Island>(IslandOptions{.env = {fmt::format("ISOLA_NAME_SERVERS={}:53", gate::kNameServer)}});
  }
  static void TearDownTestSuite() {
    island.reset();
    if (home) {
      ASSERT_EQ(::setns(home.get(), CLONE_NEWNET), 0);
    }
    servers.reset();
    cable.reset();
  }
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    if (!servers->missing().empty()) GTEST_SKIP() << servers->missing();
  }

  // Runs the clients under the policy and compares: all of them reach `yes` and none reaches `no`.
  static void expect(const std::string& policy, const std::string& clients, const std::string& yes,
                     const std::string& no) {
    SCOPED_TRACE(policy);
    // The host's programs, which the machine's packages provide; the sandbox's own are too few.
    auto done = island->isola({"run",
                               "--template",
                               "minimal",
                               "--cold",
                               "--allow-unquotaed-disk",
                               "--memory",
                               "2G",
                               "--mount-ro",
                               "/usr:/usr",
                               "--mount-ro",
                               servers->folder() + ":/mnt",
                               "--net",
                               policy,
                               "-e",
                               "clients=" + clients,
                               "-e",
                               "targets=" + yes + " " + no,
                               "--",
                               "sh",
                               "-c",
                               kScript},
                              {.limit = std::chrono::seconds(120)});
    EXPECT_EQ(done.code, 0) << done.text();
    std::istringstream lines(done.out);
    int seen = 0, missing = 0;
    for (std::string client, target, word; lines >> client >> target >> word;) {
      if (word == "missing") {
        std::printf("reduced: this machine has no %s\n", client.c_str());
        ++missing;
        continue;
      }
      ++seen;
      bool wanted = (" " + yes + " ").find(" " + target + " ") != std::string::npos;
      EXPECT_EQ(word, wanted ? "yes" : "no") << client << " to " << target << "\n" << done.err;
    }
    // Each client that is there, at each target: one that is missing has shown nothing.
    EXPECT_EQ(seen, (words(clients) - missing) * (words(yes) + words(no))) << done.text();
    EXPECT_GT(seen, 0) << "nothing was tried";
  }
  static int words(const std::string& text) {
    std::istringstream in(text);
    return static_cast<int>(std::distance(std::istream_iterator<std::string>(in), {}));
  }
  static std::string all() { return fmt::format("{} {} {}", kHttp, kHttps, kOthers); }

  static Fd home;
  static std::optional<gate::Cable> cable;
  static std::unique_ptr<NetServers> servers;
  static std::unique_ptr<Island> island;
};
Fd NetClients::home;
std::optional<gate::Cable> NetClients::cable;
std::unique_ptr<NetServers> NetClients::servers;
std::unique_ptr<Island> NetClients::island;

TEST_F(NetClients, ExactNames) { expect("allow a.example", all(), "a.example", "b.example"); }

TEST_F(NetClients, Wildcards) {
  expect("allow *.wild.example", all(), "x.wild.example", "wild.example");
  expect("deny *.x.wild.example\nallow *.wild.example", "curl-http curl-https ssh psql", "x.wild.example",
         "deep.x.wild.example");
}

TEST_F(NetClients, Networks) {
  // The certificate names the addresses, too. npm's own index names hosts, which literal addresses do not reach.
  std::string clients = fmt::format("{} curl-https urllib-https node-https git-https openssl pip {}", kHttp, kOthers);
  expect("allow 203.0.113.8/30", clients, "203.0.113.10", "a.example 198.51.100.7");
  expect("deny 203.0.113.11\nallow a.example\nallow b.example", "curl-http curl-https ssh psql", "a.example",
         "b.example");
}

TEST_F(NetClients, Ports) {
  expect("allow a.example:80", fmt::format("{} {} {} curl-8080", kHttps, kOthers, "ssh"), "", "a.example");
  expect("allow a.example:80\nallow b.example:443,22,5432", kHttp, "a.example", "b.example");
  expect("allow a.example:80\nallow b.example:443,22,5432", fmt::format("{} {}", kHttps, kOthers), "b.example",
         "a.example");
  expect("allow a.example:8000-8100", "curl-8080", "a.example", "b.example");
}

TEST_F(NetClients, Defaults) {
  expect("deny b.example\ndefault allow", all(), "a.example", "b.example");
  expect("default deny", "curl-http curl-https urllib-https node-https git-https git-ssh ssh psql openssl apt-get", "",
         "a.example 203.0.113.10");
  expect("none", "curl-http curl-https ssh psql", "", "a.example 203.0.113.10");
}

// By a literal address, asking for a name that is denied: curl and openssl both let one say so.
TEST_F(NetClients, LiteralAddressesAndDeniedNames) {
  auto run = [&](const std::string& name) {
    return island->isola({"run", "--template", "minimal", "--cold", "--allow-unquotaed-disk", "--memory", "2G",
                          "--mount-ro", "/usr:/usr", "--mount-ro", servers->folder() + ":/mnt", "--net",
                          "deny b.example;default allow", "-e", "name=" + name, "--", "sh", "-c",
                          "echo nameserver 10.255.255.254 > /etc/resolv.conf; for at in 203.0.113.10 203.0.113.11; do\n"
                          "curl -sS --noproxy '*' --cacert /mnt/ca.pem --resolve $name:443:$at https://$name/ 2>&1 "
                          "| grep -q hello && echo curl $at\n"
                          "printf 'GET / HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n' $name | openssl s_client -quiet "
                          "-verify_quiet -CAfile /mnt/ca.pem -servername $name -connect $at:443 2>&1 "
                          "| grep -q hello && echo openssl $at\ndone; true"},
                         {.limit = std::chrono::seconds(120)});
  };
  auto good = run("a.example");
  EXPECT_EQ(good.out, "curl 203.0.113.10\nopenssl 203.0.113.10\ncurl 203.0.113.11\nopenssl 203.0.113.11\n")
      << good.text();
  auto bad = run("b.example");
  EXPECT_EQ(bad.out, "") << bad.text();
}

TEST_F(NetClients, OtherFamilyAndInsidePlaces) {
  expect("allow six.example", "curl-http curl-https urllib-https ssh psql", "six.example", "a.example");
  expect("default allow", "curl-http curl-https ssh psql", "a.example", "inside.example 10.5.0.1");
  expect("allow inside.example local", "curl-http curl-https ssh psql", "inside.example", "10.5.0.1");
}

// The machine's own registries, over the machine's own network: a launcher outside of any namespace of ours.
class NetRegistries : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    island_ = std::make_unique<Island>();
  }
  // What `command` (which must print "good") does with the preset, after the same tool has worked out here: where
  // the host itself reaches no registry, nothing can be shown.
  void expect_works(const char* name, const std::string& outside, const std::string& command) {
    NEEDS_TEMPLATE(name);
    auto here = run_program({"sh", "-c", outside}, {.limit = std::chrono::seconds(60)});
    if (here.code != 0) GTEST_SKIP() << "this machine itself reaches no such registry";
    auto run = [&](const std::string& net, const std::string& script) {
      return island_->isola({"run", "--template", name, "--memory", "2G", "--net", net, "--", "sh", "-c",
                             "echo nameserver 10.255.255.254 > /etc/resolv.conf; cd /tmp; " + script},
                            {.limit = std::chrono::seconds(150)});
    };
    auto done = run("package-registries", command);
    EXPECT_NE(done.out.find("good"), std::string::npos) << done.text();
    done = run("none", command);
    EXPECT_EQ(done.out.find("good"), std::string::npos) << done.text();
    // Anything else is refused, and for that reason: not because the network is away. A name by the resolver, which
    // says why; an address by the gate, whose word is the reset of a connection that it took.
    done = run("package-registries", std::string("python3 -c '") + kElse + "'");
    EXPECT_EQ(done.out, "isola: policy (default deny)\nConnectionResetError\n") << done.text();
  }
  static constexpr char kElse[] = R"(
import socket
query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x03www\x07example\x03org\x00\x00\x01\x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20)
s.sendto(query, ("10.255.255.254", 53))
reply = s.recv(2000)
print(reply[reply.index(b"isola:"):].decode())
try:
  with socket.create_connection(("192.0.2.1", 443), 20) as c: print(c.recv(1))
except OSError as e: print(type(e).__name__)
)";
  std::unique_ptr<Island> island_;
};

TEST_F(NetRegistries, AptGet) {
  expect_works(
      "minimal", "apt-get -qq --print-uris download hello >/dev/null || apt-get -qq update",
      "apt-get -qq update && apt-get -qq install -y hello >/dev/null && hello --version >/dev/null && echo good");
}

TEST_F(NetRegistries, Pip) {
  expect_works(
      "base", "python3 -m pip download -q --no-deps --no-cache-dir -d $(mktemp -d) six",
      "python3 -m venv v && v/bin/pip install -q --no-cache-dir six && v/bin/python -c 'import six' && echo good");
}

TEST_F(NetRegistries, Npm) {
  expect_works("base", "npm view left-pad version",
               "npm install --silent --no-audit --no-fund left-pad && node -e 'require(\"left-pad\")' && echo good");
}

}  // namespace
}  // namespace isola::e2e
