// File calls, watches, ports and metrics of a real guest, driven through the client.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "base/file.h"
#include "guest/test_guest.h"

namespace isola::guest {
namespace {

class GuestFiles : public testing::Test {
 protected:
  TestGuest guest;
  TempDir dir;
  GuestFiles() { ::chmod(dir.path().c_str(), 0777); }
};

// A callback that waits for the client that is just handing it something would read frames in the middle of others.
TEST_F(GuestFiles, ACallbackThatWaitsIsRefused) {
  for (const char* name : {"one", "two", "three"}) ASSERT_TRUE(guest->write_file({.path = dir / name}, name));
  int entries = 0;
  auto expect_refused = [](const auto& result) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Code::invalid) << result.error().message;
  };
  auto listed = guest->list({.path = dir.path()}, [&](const Entry& entry) {
    ++entries;
    expect_refused(guest->read_file({.path = dir / entry.path}, size_t{100}));
    expect_refused(guest->write_file({.path = dir / "four"}, "x"));
    expect_refused(guest->remove({.path = dir / entry.path}));
    expect_refused(guest->list({.path = dir.path()}, [](const Entry&) {}));
    expect_refused(guest->run({.argv = {"true"}}));
    expect_refused(guest->dial(1));
    expect_refused(guest->pump());
  });
  ASSERT_OK(listed);
  EXPECT_EQ(entries, 3);
  // Nothing of it was done, and the client goes on.
  EXPECT_EQ(guest->read_file({.path = dir / "one"}).value(), "one");
  EXPECT_FALSE(guest->stat({.path = dir / "four"}));
}

TEST_F(GuestFiles, WriteReadStat) {
  auto path = dir / "a/b/file";
  auto w = guest->write_file({.path = path, .mode = 0600, .parents = true, .owner = "1000:1001"}, "hello");
  ASSERT_OK(w);
  EXPECT_EQ(w->bytes, 5u);
  auto st = guest->stat({.path = path});
  ASSERT_OK(st);
  EXPECT_EQ(st->type, FileType::file);
  EXPECT_EQ(st->mode, 0600u);
  EXPECT_EQ(st->uid, 1000u);
  EXPECT_EQ(st->gid, 1001u);
  EXPECT_EQ(st->size, 5u);
  EXPECT_EQ(guest->read_file({.path = path}).value(), "hello");
  EXPECT_EQ(guest->read_file({.path = path, .offset = 1, .length = 3}).value(), "ell");
  ASSERT_TRUE(guest->write_file({.path = path, .how = WriteMode::append}, "!!"));
  ASSERT_TRUE(guest->write_file({.path = path, .how = WriteMode::at_offset, .offset = 1}, "E"));
  EXPECT_EQ(guest->read_file({.path = path}).value(), "hEllo!!");
  EXPECT_EQ(guest->write_file({.path = path, .how = WriteMode::create_new}, "x").error().code, Code::exists);
  auto inode = st->inode;
  ASSERT_TRUE(guest->write_file({.path = path, .how = WriteMode::replace}, "new"));
  EXPECT_EQ(guest->read_file({.path = path}).value(), "new");
  EXPECT_NE(guest->stat({.path = path})->inode, inode);
  ASSERT_TRUE(guest->write_file({.path = path}, ""));
  EXPECT_EQ(guest->stat({.path = path})->size, 0u);
  EXPECT_EQ(guest->read_file({.path = dir / "none"}).error().sys_errno, ENOENT);
  EXPECT_EQ(guest->read_file({.path = dir.path()}).error().sys_errno, EISDIR);
  EXPECT_EQ(guest->read_file({.path = "relative"}).error().code, Code::invalid);
  EXPECT_EQ(guest->write_file({.path = dir / "x/y"}, "z").error().sys_errno, ENOENT);
}

TEST_F(GuestFiles, AnAbandonedReplaceLeavesNothing) {
  auto path = dir / "file";
  ASSERT_TRUE(guest->write_file({.path = path}, "old"));
  int round = 0;
  auto w = guest->write_file({.path = path, .how = WriteMode::replace}, [&](char* b, size_t) -> Result<size_t> {
    if (round++ == 3) return fail(Code::internal, "source broke");
    b[0] = 'x';
    return 1;
  });
  EXPECT_EQ(w.error().message, "source broke");
  EXPECT_EQ(guest->read_file({.path = path}).value(), "old");
  EXPECT_EQ(guest.sh("ls -A " + dir.path()).out, "file\n");
}

TEST_F(GuestFiles, AHundredMegabytesInAndOut) {
  auto path = dir / "big";
  constexpr size_t kSize = 100'000'000;
  size_t made = 0;
  auto byte = [](size_t i) { return static_cast<char>(i * 2654435761u >> 24); };
  auto w = guest->write_file({.path = path}, [&](char* b, size_t size) -> Result<size_t> {
    size_t n = std::min(size, kSize - made);
    for (size_t i = 0; i < n; ++i) b[i] = byte(made + i);
    made += n;
    return n;
  });
  ASSERT_OK(w);
  EXPECT_EQ(w->bytes, kSize);
  size_t seen = 0, wrong = 0;
  auto r = guest->read_file({.path = path}, [&](std::string_view s) -> Result<void> {
    for (char c : s) wrong += c != byte(seen++);
    return {};
  });
  ASSERT_OK(r);
  EXPECT_EQ(seen, kSize);
  EXPECT_EQ(wrong, 0u);
  // A reader that has enough.
  r = guest->read_file({.path = path},
                       [&](std::string_view) -> Result<void> { return fail(Code::exhausted, "enough"); });
  EXPECT_EQ(r.error().message, "enough");
  EXPECT_TRUE(guest->ping("on"));
}

TEST_F(GuestFiles, NothingThatBlocksIsOpened) {
  ASSERT_EQ(guest.sh("mkfifo " + dir / "fifo").exit->code, 0);
  EXPECT_EQ(guest->read_file({.path = dir / "fifo"}).error().code, Code::invalid);
  EXPECT_FALSE(guest->write_file({.path = dir / "fifo"}, "x"));
  EXPECT_EQ(guest->read_file({.path = "/dev/zero"}).error().code, Code::invalid);
  EXPECT_EQ(guest->stat({.path = dir / "fifo"})->type, FileType::fifo);
}

TEST_F(GuestFiles, FoldersLinksAndAttributes) {
  ASSERT_TRUE(guest->mkdir({.path = dir / "x/y/z", .mode = 0750}));
  ASSERT_TRUE(guest->mkdir({.path = dir / "x/y/z"}));
  EXPECT_EQ(guest->mkdir({.path = dir / "x/y/z", .parents = false}).error().code, Code::exists);
  EXPECT_EQ(guest->stat({.path = dir / "x/y/z"})->mode, 0750u);
  ASSERT_TRUE(guest->symlink({.target = "/etc/passwd", .path = dir / "link"}));
  auto st = guest->stat({.path = dir / "link"});
  EXPECT_EQ(st->type, FileType::link);
  EXPECT_EQ(st->target, "/etc/passwd");
  EXPECT_EQ(guest->stat({.path = dir / "link", .follow = true})->type, FileType::file);
  EXPECT_EQ(guest->readlink({.path = dir / "link"}).value(), "/etc/passwd");
  ASSERT_TRUE(guest->rename({.from = dir / "link", .to = dir / "l2"}));
  ASSERT_TRUE(guest->write_file({.path = dir / "f"}, "1"));
  EXPECT_EQ(guest->rename({.from = dir / "f", .to = dir / "l2", .replace = false}).error().code, Code::exists);
  ASSERT_TRUE(guest->chmod({.path = dir / "f", .mode = 04711}));
  EXPECT_EQ(guest->stat({.path = dir / "f"})->mode, 04711u);
  ASSERT_TRUE(guest->chown({.path = dir / "f", .owner = "7:8"}));
  EXPECT_EQ(guest->stat({.path = dir / "f"})->gid, 8u);
  ASSERT_TRUE(guest->chown({.path = dir / "l2", .owner = "9:9"}));
  EXPECT_EQ(guest->stat({.path = "/etc/passwd"})->uid, 0u);  // the link was given away, not what it points to
  EXPECT_EQ(guest->stat({.path = dir / "l2"})->uid, 9u);

  std::string value(1000, 'v');
  if (auto set = guest->xattr_set({.path = dir / "f", .name = "user.note", .value = value}); set) {
    EXPECT_EQ(guest->xattr_get({.path = dir / "f", .name = "user.note"}).value(), value);
    EXPECT_EQ(guest->xattr_list({.path = dir / "f"})->names, std::vector<std::string>{"user.note"});
    ASSERT_TRUE(guest->xattr_remove({.path = dir / "f", .name = "user.note"}));
    EXPECT_EQ(guest->xattr_get({.path = dir / "f", .name = "user.note"}).error().sys_errno, ENODATA);
  } else {
    EXPECT_EQ(set.error().sys_errno, EOPNOTSUPP);
  }
}

TEST_F(GuestFiles, AFollowedLinkSaysWhereItLed) {
  ASSERT_TRUE(guest->write_file({.path = dir / "real/file", .parents = true}, "x"));
  ASSERT_TRUE(guest->symlink({.target = "real", .path = dir / "lane"}));
  ASSERT_TRUE(guest->symlink({.target = "lane/file", .path = dir / "one"}));
  ASSERT_TRUE(guest->symlink({.target = "one", .path = dir / "two"}));
  EXPECT_EQ(guest->stat({.path = dir / "two", .follow = true})->target, dir / "real/file");
  EXPECT_EQ(guest->stat({.path = dir / "two"})->target, "one");
  EXPECT_EQ(guest->stat({.path = dir / "real/file", .follow = true})->target, "");
}

TEST_F(GuestFiles, ListByDepthAndCount) {
  ASSERT_EQ(guest
                .sh("cd " + dir.path() +
                    "; mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3; ln -s /etc a/etc; "
                    "printf x > \"$(printf 'odd\\n\\377name')\"")
                .exit->code,
            0);
  auto names = [&](List l) {
    std::set<std::string> out;
    auto listed = guest->list(l, [&](const Entry& e) { out.insert(e.path); });
    EXPECT_TRUE(listed) << listed.error().message;
    return out;
  };
  EXPECT_EQ(names({.path = dir.path()}), (std::set<std::string>{"a", "odd\n\377name"}));
  EXPECT_EQ(names({.path = dir / "a", .depth = 2}), (std::set<std::string>{"1", "b", "b/2", "b/c", "etc"}));
  EXPECT_EQ(names({.path = dir / "a", .depth = 64}).size(), 6u);
  EXPECT_EQ(guest->list({.path = dir.path(), .depth = 0}, {}).error().code, Code::invalid);
  ASSERT_EQ(guest.sh("mkdir " + dir / "many; cd " + dir / "many; seq 20000 | xargs touch").exit->code, 0);
  uint64_t n = 0;
  auto listed = guest->list({.path = dir / "many"}, [&](const Entry&) { ++n; });
  ASSERT_OK(listed);
  EXPECT_EQ(n, 20000u);
  EXPECT_FALSE(listed->truncated);
  listed = guest->list({.path = dir / "many", .limit = 100}, [](const Entry&) {});
  EXPECT_EQ(listed->count, 100u);
  EXPECT_TRUE(listed->truncated);
}

TEST_F(GuestFiles, RemoveTrees) {
  ASSERT_TRUE(guest->mkdir({.path = dir / "keep"}));
  ASSERT_TRUE(guest->write_file({.path = dir / "keep/me"}, "x"));
  ASSERT_TRUE(guest->mkdir({.path = dir / "t/u"}));
  ASSERT_TRUE(guest->symlink({.target = dir / "keep", .path = dir / "t/u/link"}));
  EXPECT_EQ(guest->remove({.path = dir / "t"}).error().sys_errno, ENOTEMPTY);
  ASSERT_TRUE(guest->remove({.path = dir / "t", .recursive = true}));
  EXPECT_EQ(guest->stat({.path = dir / "t"}).error().code, Code::not_found);
  EXPECT_TRUE(guest->stat({.path = dir / "keep/me"}));  // the link went, not what it pointed to
  // Wide and deep: far deeper than the number of fds.
  ASSERT_EQ(guest.sh("mkdir " + dir / "wide; cd " + dir / "wide; seq 5000 | xargs touch").exit->code, 0);
  ASSERT_EQ(::mkdir((dir / "deep").c_str(), 0755), 0);
  Fd at(::open((dir / "deep").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_EQ(::mkdirat(at.get(), "d", 0755), 0);
    at = Fd(::openat(at.get(), "d", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  at.reset();
  ASSERT_TRUE(guest->remove({.path = dir / "wide", .recursive = true}));
  auto deep = guest->remove({.path = dir / "deep", .recursive = true});
  ASSERT_OK(deep);
  EXPECT_EQ(guest.sh("ls " + dir.path()).out, "keep\n");
  EXPECT_EQ(guest->remove({.path = "/", .recursive = true}).error().code, Code::exists);
}

TEST_F(GuestFiles, RemoveIsNotLedAstrayByLinks) {
  // A folder that keeps changing places with a link to `prey` while its tree is being removed.
  ASSERT_EQ(guest.sh("mkdir " + dir / "prey; cd " + dir / "prey; seq 50 | xargs touch").exit->code, 0);
  std::atomic<bool> stop = false;
  std::string root = dir / "tree", sub = root + "/sub", away = dir / "away", prey = dir / "prey";
  std::thread racer([&] {
    char target[4096];
    for (int junk = 0; !stop; ++junk) {
      if (::readlink(away.c_str(), target, sizeof target) < 0) {  // the remover took the link: a new one
        ::rename(away.c_str(), (dir / ("junk" + std::to_string(junk))).c_str());
        (void)!::symlink(prey.c_str(), away.c_str());
      }
      for (int twice = 0; twice < 2; ++twice) {
        ::syscall(SYS_renameat2, AT_FDCWD, sub.c_str(), AT_FDCWD, away.c_str(), 2 /* RENAME_EXCHANGE */);
      }
    }
  });
  for (int i = 0; i < 300; ++i) {
    (void)guest->mkdir({.path = sub + "/q"});
    for (const char* name : {"/1", "/2", "/3"}) (void)guest->write_file({.path = sub + name}, "x");
    (void)guest->remove({.path = root, .recursive = true});
  }
  stop = true;
  racer.join();
  uint64_t n = 0;
  ASSERT_TRUE(guest->list({.path = prey}, [&](const Entry& e) { n += e.path != "q"; }));
  EXPECT_EQ(n, 50u);  // 1, 2 and 3 are among them: writes through the link changed nothing but their bytes
}

TEST_F(GuestFiles, ListIsNotLedAstrayByLinks) {
  // A folder that keeps changing places with a link to a folder elsewhere while its tree is being listed.
  std::string root = dir / "tree", sub = root + "/sub", away = dir / "away", elsewhere = dir / "elsewhere";
  for (const auto& folder : {root, sub, elsewhere}) ASSERT_TRUE(guest->mkdir({.path = folder}));
  ASSERT_TRUE(guest->write_file({.path = elsewhere + "/not-here"}, "x"));
  ASSERT_EQ(::symlink(elsewhere.c_str(), away.c_str()), 0);
  std::atomic<bool> stop = false;
  std::thread racer([&] {
    while (!stop) ::syscall(SYS_renameat2, AT_FDCWD, sub.c_str(), AT_FDCWD, away.c_str(), 2 /* RENAME_EXCHANGE */);
  });
  bool folder = false, link = false, astray = false;
  for (int i = 0; i < 3000 && !astray; ++i)
    (void)guest->list({.path = root, .depth = 3}, [&](const Entry& e) {
      folder |= e.stat.type == FileType::dir;
      link |= e.stat.type == FileType::link;
      astray |= e.path.find("not-here") != std::string::npos;
    });
  stop = true;
  racer.join();
  EXPECT_TRUE(folder && link) << "they never changed places: this shows nothing";
  EXPECT_FALSE(astray);
}

TEST_F(GuestFiles, TheActingUsersRightsDecide) {
  ASSERT_TRUE(guest->write_file({.path = dir / "secret", .mode = 0600}, "root's"));
  ASSERT_TRUE(guest->symlink({.target = dir / "secret", .path = dir / "bait", .user = "1000"}));
  EXPECT_EQ(guest->stat({.path = dir / "bait"})->uid, 1000u);
  for (const char* name : {"secret", "bait"}) {
    EXPECT_EQ(guest->read_file({.path = dir / name, .user = "1000"}).error().sys_errno, EACCES);
    EXPECT_EQ(
        guest->write_file({.path = dir / name, .user = "1000", .how = WriteMode::truncate}, "x").error().sys_errno,
        EACCES);
    EXPECT_EQ(guest->chmod({.path = dir / name, .user = "1000", .mode = 0666}).error().sys_errno, EPERM);
  }
  EXPECT_EQ(guest->chown({.path = dir / "secret", .user = "1000", .owner = "1000"}).error().sys_errno, EPERM);
  ASSERT_TRUE(guest->mkdir({.path = dir / "roots"}));
  EXPECT_EQ(guest->mkdir({.path = dir / "roots/x", .user = "1000"}).error().sys_errno, EACCES);
  EXPECT_FALSE(guest->write_file({.path = dir / "mine", .user = "1000", .owner = "0:0"}, "x"));
  ASSERT_TRUE(guest->write_file({.path = dir / "mine2", .user = "1000:1000", .how = WriteMode::replace}, "x"));
  EXPECT_EQ(guest->stat({.path = dir / "mine2"})->uid, 1000u);
  ASSERT_TRUE(guest->mkdir({.path = dir / "locked/in", .mode = 0700}));
  EXPECT_EQ(guest->list({.path = dir / "locked", .user = "1000"}, {}).error().sys_errno, EACCES);
  EXPECT_FALSE(guest->remove({.path = dir / "locked", .user = "1000", .recursive = true}));
  EXPECT_FALSE(guest->watch({.path = dir / "locked/in", .user = "1000"}, {}));
  // And root is root again afterwards.
  EXPECT_EQ(guest->read_file({.path = dir / "secret"}).value(), "root's");
  EXPECT_TRUE(guest->stat({.path = dir / "locked/in"}));
  EXPECT_EQ(guest->stat({.path = "/", .user = "stranger"}).error().message, "no such user: stranger");
}

TEST_F(GuestFiles, WatchIsRecursiveAndFollowsNewFolders) {
  ASSERT_TRUE(guest->mkdir({.path = dir / "a/b"}));
  std::map<std::string, std::set<Change>> seen;
  auto channel = guest->watch({.path = dir.path()}, [&](const WatchEvent& e) { seen[e.path].insert(e.change); });
  ASSERT_OK(channel);
  ASSERT_EQ(guest
                .sh("cd " + dir.path() +
                    "; echo 1 >a/b/f; mkdir -p new/deep; echo 2 >new/deep/g; mv a/b/f a/h; chmod 600 a/h; "
                    "rm a/h; mv new moved; echo 3 >moved/deep/late; rm -r moved; touch last")
                .exit->code,
            0);
  ASSERT_TRUE(guest->pump_until([&] { return seen.contains("last"); }, PipeClient::Milliseconds(10000)));
  EXPECT_TRUE(seen["a/b/f"].contains(Change::created));
  EXPECT_TRUE(seen["a/b/f"].contains(Change::modified));
  EXPECT_TRUE(seen["a/b/f"].contains(Change::moved_from));
  EXPECT_TRUE(seen["a/h"].contains(Change::moved_to));
  EXPECT_TRUE(seen["a/h"].contains(Change::attributes));
  EXPECT_TRUE(seen["a/h"].contains(Change::removed));
  EXPECT_TRUE(seen["new"].contains(Change::created));
  EXPECT_TRUE(seen["moved"].contains(Change::removed));
  // A folder made while we watch, step by step: everything in it is told.
  seen.clear();
  ASSERT_TRUE(guest->mkdir({.path = dir / "n/o"}));
  ASSERT_TRUE(guest->write_file({.path = dir / "n/o/p"}, "x"));
  ASSERT_TRUE(guest->pump_until([&] { return seen.contains("n/o/p"); }, PipeClient::Milliseconds(10000)));
  guest->session().cancel(*channel);
  EXPECT_EQ(guest->watch({.path = dir / "nowhere"}, {}).error().code, Code::not_found);
}

TEST_F(GuestFiles, AWatcherThatDoesNotReadIsToldThatItMissedSomething) {
  bool overflow = false, ended = false;
  std::string bytes;
  uint32_t channel = guest->session().open(
      Op::watch, encode(Watch{.path = dir.path()}),
      {.data = [&](std::string_view s) { bytes += s; }, .end = [&](Result<std::string_view>) { ended = true; }},
      kMaxPayload, true);
  ASSERT_EQ(guest.sh("cd " + dir.path() + "; i=0; while [ $i -lt 20000 ]; do echo >f$i; i=$((i+1)); done").exit->code,
            0);
  guest->session().grant(channel, 1 << 28);
  auto scan = [&] {
    Reader in(bytes);  // whole frames, so whole records
    while (!in.done() && in.ok()) overflow |= decode<WatchEvent>(in.view())->change == Change::overflow;
    bytes.clear();
    return overflow;
  };
  EXPECT_TRUE(guest->pump_until(scan, PipeClient::Milliseconds(20000)));
  EXPECT_FALSE(ended);
}

struct Listener {
  Fd fd;
  uint16_t port = 0;
  explicit Listener(bool v6 = false) : fd(::socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_storage a{};
    a.ss_family = v6 ? AF_INET6 : AF_INET;
    socklen_t size = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (v6)
      reinterpret_cast<sockaddr_in6*>(&a)->sin6_addr = in6addr_loopback;
    else
      reinterpret_cast<sockaddr_in*>(&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&a), size) < 0 || ::listen(fd.get(), 8) < 0) return;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&a), &size);
    port = ntohs(v6 ? reinterpret_cast<sockaddr_in6*>(&a)->sin6_port : reinterpret_cast<sockaddr_in*>(&a)->sin_port);
  }
};

TEST_F(GuestFiles, DialCarriesBothWaysWithHalfClose) {
  for (bool v6 : {false, true}) {
    Listener service(v6);
    if (service.port == 0) GTEST_SKIP() << "no loopback address of that family here";
    auto ports = guest->ports();
    ASSERT_OK(ports);
    bool listed = false;
    for (const auto& p : ports->list) listed |= p.port == service.port && p.v6 == v6 && p.loopback;
    EXPECT_TRUE(listed);
    auto c = guest->dial(service.port);
    ASSERT_OK(c);
    Fd peer(::accept4(service.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::thread echo([&] {  // sends back what it got, only after the other side has closed
      std::string all;
      char b[65536];
      for (ssize_t n; (n = ::read(peer.get(), b, sizeof b)) > 0;) all.append(b, static_cast<size_t>(n));
      (void)write_all(peer.get(), all);
      ::shutdown(peer.get(), SHUT_WR);
    });
    std::string sent(3 << 20, 'q');
    sent[12345] = '!';
    ASSERT_TRUE(guest->write(*c, sent));
    guest->close_write(*c);
    std::string back;
    for (;;) {
      auto piece = guest->read(*c, 1 << 20);
      ASSERT_OK(piece);
      if (piece->empty()) break;
      back += *piece;
    }
    ASSERT_TRUE(guest->pump_until([&] { return (*c)->ended; }));
    echo.join();
    EXPECT_TRUE(back == sent);
    EXPECT_TRUE((*c)->result);
    EXPECT_EQ(guest->read(*c).value(), "") << "the end stays the end";
  }
  Listener closed;
  uint16_t port = closed.port;
  closed.fd.reset();
  EXPECT_EQ(guest->dial(port).error().sys_errno, ECONNREFUSED);
}

// A peer that sends and sends: what nobody takes out stays where it is.
TEST_F(GuestFiles, AConnectionHoldsNoMoreThanItsWindow) {
  Listener service;
  auto c = guest->dial(service.port);
  ASSERT_OK(c);
  Fd peer(::accept4(service.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  constexpr size_t kAll = 8 << 20;
  std::thread sender([&] {
    (void)write_all(peer.get(), std::string(kAll, 's'));
    ::shutdown(peer.get(), SHUT_WR);
  });
  ASSERT_TRUE(guest->pump_until([&] { return (*c)->received.size() == kHostWindow; }));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(guest->ping("still there")) << "other channels go on";
  EXPECT_EQ((*c)->received.size(), kHostWindow);
  size_t taken = 0;
  for (;;) {
    auto piece = guest->read(*c, 100000, PipeClient::Milliseconds(20000));
    ASSERT_OK(piece);
    if (piece->empty()) break;
    taken += piece->size();
    EXPECT_LE((*c)->received.size(), kHostWindow);
  }
  sender.join();
  EXPECT_EQ(taken, kAll);
}

TEST_F(GuestFiles, HangingUpEndsBothDirections) {
  Listener service;
  auto c = guest->dial(service.port);
  ASSERT_OK(c);
  Fd peer(::accept4(service.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_EQ(::write(peer.get(), "unread", 6), 6);
  ASSERT_TRUE(guest->pump_until([&] { return (*c)->received == "unread"; }));
  guest->hang_up(*c);
  EXPECT_EQ(guest->read(*c).value(), "");
  ASSERT_TRUE(guest->pump_until([&] { return (*c)->ended; }));
  char byte;
  EXPECT_LE(::read(peer.get(), &byte, 1), 0) << "the other side is told";
  EXPECT_EQ(guest->write(*c, "x").error().code, Code::unavailable);
  EXPECT_EQ(guest->session().channels(), 0u);
}

TEST_F(GuestFiles, DiallingAndReadingEndAtTheirDeadline) {
  // One that nobody takes: a queue of one place, which is taken.
  Listener busy;
  ASSERT_EQ(::listen(busy.fd.get(), 0), 0);
  std::vector<std::shared_ptr<Connection>> queued;
  Result<std::shared_ptr<Connection>> last = fail(Code::internal, "");
  for (int i = 0; i < 8; ++i) {
    last = guest->dial(busy.port, PipeClient::Milliseconds(100));
    if (!last) break;
    queued.push_back(*last);
  }
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, Code::timeout);
  ASSERT_FALSE(queued.empty());
  EXPECT_EQ(guest->read(queued[0], 1, PipeClient::Milliseconds(20)).error().code, Code::timeout);
  EXPECT_EQ(guest->write(queued[0], std::string(32 << 20, 'x'), PipeClient::Milliseconds(100)).error().code,
            Code::timeout);
  for (auto& c : queued) guest->hang_up(c);
  EXPECT_TRUE(guest->ping("the link goes on"));
  ASSERT_TRUE(guest->pump_until([&] { return guest->session().channels() == 0; }));
}

TEST_F(GuestFiles, PatienceEnds) {
  ASSERT_TRUE(guest->write_file({.path = dir / "file"}, std::string(1 << 20, 'f')));
  guest->set_patience(PipeClient::Milliseconds(50));
  ASSERT_EQ(::kill(guest.pid(), SIGSTOP), 0);
  EXPECT_EQ(guest->stat({.path = "/"}).error().code, Code::timeout);
  int calls = 0;
  EXPECT_EQ(guest->list({.path = "/"}, [&](const Entry&) { ++calls; }).error().code, Code::timeout);
  EXPECT_EQ(guest->read_file({.path = dir / "file"}).error().code, Code::timeout);
  EXPECT_EQ(guest->write_file({.path = dir / "other"}, std::string(1 << 20, 'o')).error().code, Code::timeout);
  ASSERT_EQ(::kill(guest.pid(), SIGCONT), 0);
  // What was given up is over on both sides; late answers disturb nobody.
  guest->set_patience(PipeClient::Milliseconds(-1));
  ASSERT_TRUE(guest->pump_until([&] { return guest->session().channels() == 0; }));
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(guest->read_file({.path = dir / "file"})->size(), 1u << 20);
  // A run may be silent, for longer than anybody waits for its start, which takes its time on a busy machine.
  guest->set_patience(PipeClient::Milliseconds(1000));
  EXPECT_EQ(guest.sh("sleep 1.5; exit 4").exit->code, 4);
  auto started = guest->start({.argv = {"/bin/sh", "-c", "sleep 1.5; exit 5"}});
  ASSERT_OK(started);
  EXPECT_EQ(guest->wait(started->pid)->code, 5);
}

TEST_F(GuestFiles, Metrics) {
  ASSERT_TRUE(guest.sh("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").exit);
  auto m = guest->metrics();
  ASSERT_OK(m);
  EXPECT_EQ(m->processes, 1u);
  EXPECT_GT(m->cpu_us, 0u);
  EXPECT_GT(m->memory_bytes, 0u);
  EXPECT_GT(m->disk_total, m->disk_used);
}

}  // namespace
}  // namespace isola::guest
