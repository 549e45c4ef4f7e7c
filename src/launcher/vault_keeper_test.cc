#include "launcher/vault_keeper.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>

#include "base/codec.h"
#include "base/file.h"
#include "vault/binding_wire.h"
#include "vault/source.h"

namespace isola::launcher {
namespace {

using vault::Binding;

class VaultKeeping : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-keeper-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    start();
  }
  void TearDown() override {
    keeper_.reset();
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    std::filesystem::remove_all(folder_);
  }
  void start() {
    keeper_.reset();
    loop_ = std::make_unique<EventLoop>(EventLoop::make().value());
    keeper_ = std::make_unique<VaultKeeper>(
        *loop_, VaultKeeper::Options{.path = folder_ + "/vault/key", .user = [] { return uid_t{0}; }});
    keeper_->open();
  }
  vault::PublicKey open_key() {
    vault::PublicKey key;
    auto text = keeper_->state().open_key;
    EXPECT_EQ(text.size(), key.size());
    std::copy(text.begin(), text.end(), key.begin());
    return key;
  }
  // Runs the loop until it has answered.
  Result<std::string> wait(const std::function<void(VaultKeeper::Done)>& ask) {
    Result<std::string> answer = fail(Code::internal, "no answer");
    bool told = false, running = false;
    ask([&](Result<std::string> result) {
      answer = std::move(result);
      told = true;
      if (running) loop_->stop();
    });
    running = true;
    if (!told) {
      EXPECT_TRUE(loop_->run());
    }
    return answer;
  }
  struct Opened {
    std::vector<Binding> bindings;
    std::string missing, unsent;  // as vault::encode_reasons writes them
  };
  // All that were asked for are there, in their order; those that are missing without a value.
  Opened open(const std::vector<Binding>& bindings, const std::vector<Binding>& before = {}, bool only_due = false) {
    OpenRequest request{.sandbox = "i1",
                        .bindings = vault::encode_bindings(bindings),
                        .before = vault::encode_bindings(before),
                        .only_due = only_due};
    auto answer = wait([&](auto done) { keeper_->open_bindings(request, done); });
    EXPECT_TRUE(answer) << answer.error().message;
    if (!answer) return {};
    Reader in(*answer);
    auto told = vault::decode_bindings(in.view()).value();
    Opened opened;
    opened.missing = in.str();
    opened.unsent = in.str();
    EXPECT_TRUE(in.done());
    auto missing = vault::decode_reasons(opened.missing).value();
    EXPECT_EQ(told.size(), bindings.size()) << "what is missing is closed, and not gone";
    for (size_t i = 0; i < std::min(told.size(), bindings.size()); ++i) {
      EXPECT_EQ(told[i].id, bindings[i].id);
      EXPECT_EQ(told[i].names, bindings[i].names);
      EXPECT_EQ(told[i].sealed.empty(), missing.contains(told[i].id));
      if (!told[i].sealed.empty()) opened.bindings.push_back(told[i]);
    }
    return opened;
  }
  Binding binding(const std::string& id, const std::string& sealed) {
    return {.id = id, .secret = "s", .names = {"a.example"}, .sealed = sealed};
  }
  std::string value_for_gate(const Binding& binding) {
    auto gate = vault::KeyPair::from(keeper_->gate_key()).value();
    auto value = vault::open_sealed(gate, binding.sealed);
    return value ? std::string(value->view()) : "!" + value.error().message;
  }

  std::string folder_;
  std::unique_ptr<EventLoop> loop_;
  std::unique_ptr<VaultKeeper> keeper_;
};

TEST_F(VaultKeeping, BindingsAreOpenedForTheGateAlone) {
  auto sealed = vault::seal_value(open_key(), "hunter2").value();
  auto opened = open({binding("b1", sealed)});
  ASSERT_EQ(opened.bindings.size(), 1u);
  EXPECT_EQ(opened.missing, "");
  EXPECT_NE(opened.bindings[0].sealed, sealed);
  EXPECT_EQ(value_for_gate(opened.bindings[0]), "hunter2");
}

// What a value is known by when it is looked at whether it is still the same.
TEST_F(VaultKeeping, ValuesHavePrints) {
  auto sealed = vault::seal_value(open_key(), "hunter2").value();
  auto again = vault::seal_value(open_key(), "hunter2").value();
  auto other = vault::seal_value(open_key(), "hunter3").value();
  auto print = [&](const std::string& id, const std::string& value) {
    auto opened = open({binding(id, value)});
    return opened.bindings.empty() ? "" : opened.bindings[0].print;
  };
  const std::string one = print("b1", sealed);
  EXPECT_FALSE(one.empty());
  EXPECT_EQ(print("b1", again), one) << "sealed anew, as by a rotation of the key";
  EXPECT_NE(print("b1", other), one);
  EXPECT_NE(print("b2", sealed), one) << "it does not tell whether two secrets are the same";
}

TEST_F(VaultKeeping, ValuesThatCannotBeSearchedForAreNotOpened) {
  auto of = [&](const char* id, const char* value) {
    return binding(id, vault::seal_value(open_key(), value).value());
  };
  auto marked = of("b4", "on");
  marked.unsearched = true;
  auto opened = open({of("b1", "12345"), of("b2", "xxxxxxxxxx"), of("b3", "123456"), marked});
  ASSERT_EQ(opened.bindings.size(), 2u);
  EXPECT_EQ(opened.bindings[0].id, "b3");
  EXPECT_EQ(opened.bindings[1].id, "b4");
  auto missing = vault::decode_reasons(opened.missing).value();
  EXPECT_EQ(missing.size(), 2u);
  EXPECT_EQ(missing["b1"], vault::kUnsearchable);
}

// The gate searches for it all the same.
TEST_F(VaultKeeping, ValuesThatNoHeaderCanHaveAreNamed) {
  const std::string pem = "-----BEGIN KEY-----\nMIIEvQ\n-----END KEY-----\n";
  auto of = [&](const char* id, vault::Place place, const char* field) {
    auto out = binding(id, vault::seal_value(open_key(), pem).value());
    out.place = place, out.field = field;
    return out;
  };
  auto opened = open({of("b1", vault::Place::bearer, ""), of("b2", vault::Place::header, "X-Key"),
                      of("b3", vault::Place::basic, "me"), of("b4", vault::Place::query, "key")});
  EXPECT_EQ(opened.missing, "");
  ASSERT_EQ(opened.bindings.size(), 4u);
  for (const auto& one : opened.bindings) EXPECT_EQ(value_for_gate(one), pem);
  EXPECT_EQ(vault::decode_reasons(opened.unsent).value(),
            (vault::Reasons{{"b1", vault::kUnsendable}, {"b2", vault::kUnsendable}}));
}

// As after the death of a gate: it is asked for every sandbox at once.
TEST_F(VaultKeeping, ManyAtOnceWaitForTheirTurn) {
  constexpr size_t kSandboxes = 200;
  const auto sealed = vault::seal_value(open_key(), "hunter2").value();
  size_t told = 0;
  std::map<std::string, size_t> answers;
  for (size_t i = 0; i < kSandboxes; ++i) {
    OpenRequest request{.sandbox = "i" + std::to_string(i),
                        .bindings = vault::encode_bindings({binding("b1", sealed)})};
    keeper_->open_bindings(request, [&](const Result<std::string>& result) {
      if (++told == kSandboxes) loop_->stop();
      if (!result) return void(++answers[result.error().message]);
      Reader in(*result);
      auto opened = vault::decode_bindings(in.view());
      ++answers[opened && opened->size() == 1 ? value_for_gate(opened->at(0)) : "nothing"];
    });
  }
  ASSERT_LT(told, kSandboxes);
  ASSERT_TRUE(loop_->run());
  EXPECT_EQ(answers, (std::map<std::string, size_t>{{"hunter2", kSandboxes}}));
}

// Whoever waits for a value may have closed his end of the pipe when the turn comes.
TEST_F(VaultKeeping, AValueGoesIntoAPipeHoweverLongItWaits) {
  const auto sealed = vault::seal_value(open_key(), "hunter2").value();
  for (size_t i = 0; i < 100; ++i)
    keeper_->open_bindings({.sandbox = "i1", .bindings = vault::encode_bindings({binding("b1", sealed)})},
                           [](const Result<std::string>&) {});
  auto pipe = kernel::make_pipe().value();
  auto done = wait([&](auto told) {
    keeper_->open_into(sealed, pipe.second, told);
    pipe.second.reset();
  });
  ASSERT_TRUE(done) << done.error().message;
  char bytes[16];
  ASSERT_EQ(::read(pipe.first.get(), bytes, sizeof bytes), 7);
  EXPECT_EQ(std::string_view(bytes, 7), "hunter2");
  EXPECT_EQ(::read(pipe.first.get(), bytes, sizeof bytes), 0) << "nobody holds the other end";
}

// Tokens are made once and used until another is due, or until what they are made of changes.
TEST_F(VaultKeeping, TokensAreMadeWhenTheyAreDue) {
  auto look = [&](SigningWish wish) { return wait([&](auto done) { keeper_->signing_keys(wish, done); }).value(); };
  auto source = vault::parse_source(R"({"type":"jwt","audience":"https://a.example"})").value();
  auto mine = binding("b1", vault::seal_source(open_key(), source).value());
  mine.identity = R"({"iss":"https://isola.example","project":"p"})";
  EXPECT_NE(open({mine}).missing.find("no key yet"), std::string::npos);
  const std::string keys = look(SigningWish::look);
  EXPECT_EQ(look(SigningWish::look), keys);
  auto first = open({mine}).bindings.at(0);
  EXPECT_TRUE(value_for_gate(first).starts_with("ey"));
  EXPECT_FALSE(first.serial.empty());
  EXPECT_TRUE(first.identity.empty()) << "the gate needs none of it";
  EXPECT_EQ(open({mine}, {first}).bindings.at(0).serial, first.serial);
  auto due = first;
  due.due = 1;
  EXPECT_NE(open({mine}, {due}, true).bindings.at(0).serial, first.serial);
  auto other = mine;
  other.audience = "https://b.example";
  EXPECT_NE(open({other}, {first}).bindings.at(0).serial, first.serial);
  // Another key is known before it signs; one that was stolen is replaced at once.
  look(SigningWish::rotate);
  EXPECT_EQ(open({mine}, {first}).bindings.at(0).serial, first.serial);
  look(SigningWish::replace);
  EXPECT_NE(open({mine}, {first}).bindings.at(0).serial, first.serial);
  // Sealed anew with everything else, and there after a restart.
  ASSERT_TRUE(keeper_->begin_rotation());
  ASSERT_TRUE(wait([&](auto done) { keeper_->reseal_signing(done); }));
  auto anew = wait([&](auto done) { keeper_->reseal_bindings(vault::encode_bindings({mine}), done); }).value();
  ASSERT_TRUE(keeper_->end_rotation());
  start();
  EXPECT_EQ(open(vault::decode_bindings(anew).value()).missing, "");
}

// What lasts is not opened again for the sake of what does not.
TEST_F(VaultKeeping, WhatLastsStaysAsItIs) {
  auto mine = binding("b1", vault::seal_value(open_key(), "hunter2").value());
  auto first = open({mine}).bindings.at(0);
  EXPECT_EQ(open({mine}, {first}, true).bindings.at(0).sealed, first.sealed);
  EXPECT_NE(open({mine}, {first}).bindings.at(0).sealed, first.sealed);
  auto changed = binding("b1", vault::seal_value(open_key(), "hunter3").value());
  EXPECT_EQ(value_for_gate(open({changed}, {first}, true).bindings.at(0)), "hunter3");
}

TEST_F(VaultKeeping, OneThatCannotBeOpenedIsClosedAndNamed) {
  auto good = vault::seal_value(open_key(), "hunter2").value();
  auto other = vault::seal_value(vault::KeyPair::make().value().open_key(), "x").value();
  auto damaged = good;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  auto opened = open({binding("b1", other), binding("b2", good), binding("b3", damaged)});
  ASSERT_EQ(opened.bindings.size(), 1u);
  EXPECT_EQ(opened.bindings[0].id, "b2");
  EXPECT_NE(opened.missing.find("b1"), std::string::npos) << opened.missing;
  EXPECT_NE(opened.missing.find("b3"), std::string::npos) << opened.missing;
  EXPECT_EQ(opened.missing.find("hunter2"), std::string::npos);
}

TEST_F(VaultKeeping, TheOperatorsEnvironmentIsASource) {
  ::setenv("ISOLA_SECRET_TOKEN", "from the environment", 1);
  auto source = vault::parse_source(R"({"type":"env","name":"ISOLA_SECRET_TOKEN"})").value();
  auto opened = open({binding("b1", vault::seal_source(open_key(), source).value())});
  ASSERT_EQ(opened.bindings.size(), 1u) << opened.missing;
  EXPECT_EQ(value_for_gate(opened.bindings[0]), "from the environment");
  ::unsetenv("ISOLA_SECRET_TOKEN");
  opened = open({binding("b1", vault::seal_source(open_key(), source).value())});
  EXPECT_TRUE(opened.bindings.empty());
  EXPECT_NE(opened.missing.find("ISOLA_SECRET_TOKEN"), std::string::npos) << opened.missing;
}

TEST_F(VaultKeeping, OnlyVariablesThatAreMeantAreRead) {
  ::setenv("ISOLA_TEST_TOKEN", "somebody's own", 1);
  auto source = vault::parse_source(R"({"type":"env","name":"ISOLA_TEST_TOKEN"})").value();
  auto opened = open({binding("b1", vault::seal_source(open_key(), source).value())});
  EXPECT_TRUE(opened.bindings.empty());
  EXPECT_NE(opened.missing.find("ISOLA_SECRET_"), std::string::npos) << opened.missing;
  ::unsetenv("ISOLA_TEST_TOKEN");
}

// Without a user that is the server's, they would be read as root.
TEST_F(VaultKeeping, NothingOfThisMachineIsReadOnNobodysBehalf) {
  ASSERT_TRUE(replace_file(folder_ + "/of-root", "hunter2", 0600));
  std::string ran = folder_ + "/ran";
  auto file = vault::parse_source(R"({"type":"file","path":")" + folder_ + R"(/of-root"})").value();
  auto command = vault::parse_source(R"({"type":"command","argv":["/usr/bin/touch",")" + ran + R"("]})").value();
  auto opened = open({binding("b1", vault::seal_source(open_key(), file).value()),
                      binding("b2", vault::seal_source(open_key(), command).value())});
  EXPECT_TRUE(opened.bindings.empty());
  EXPECT_NE(opened.missing.find("no server's user is known"), std::string::npos) << opened.missing;
  EXPECT_FALSE(std::filesystem::exists(ran));
}

TEST_F(VaultKeeping, AValueComesOutOnlyWhereRootAllowsIt) {
  auto sealed = vault::seal_value(open_key(), "hunter2").value();
  EXPECT_EQ(wait([&](auto done) { keeper_->open_value(sealed, done); }).error().code, Code::denied);
  ASSERT_TRUE(replace_file(folder_ + "/vault/allow-exposed", "", 0600));
  EXPECT_EQ(wait([&](auto done) { keeper_->open_value(sealed, done); }).value(), "hunter2");
}

TEST_F(VaultKeeping, ARotationIsCrashSafe) {
  auto before = open_key();
  auto sealed = vault::seal_value(before, "hunter2").value();
  ASSERT_TRUE(keeper_->begin_rotation());
  EXPECT_NE(open_key(), before);
  EXPECT_EQ(value_for_gate(open({binding("b1", sealed)}).bindings.at(0)), "hunter2") << "the old key still opens";
  start();  // as after a crash
  EXPECT_TRUE(keeper_->state().rotating);
  auto text = wait([&](auto done) { keeper_->reseal_values({sealed}, done); });
  ASSERT_TRUE(text) << text.error().message;
  auto fresh = Reader(*text).strs();
  ASSERT_EQ(fresh.size(), 1u);
  EXPECT_TRUE(vault::is_sealed_to(open_key(), fresh[0]));
  auto again =
      wait([&](auto done) { keeper_->reseal_bindings(vault::encode_bindings({binding("b1", sealed)}), done); });
  EXPECT_TRUE(vault::is_sealed_to(open_key(), vault::decode_bindings(*again).value().at(0).sealed));
  ASSERT_TRUE(keeper_->end_rotation());
  start();
  EXPECT_EQ(value_for_gate(open({binding("b1", fresh[0])}).bindings.at(0)), "hunter2");
  EXPECT_TRUE(open({binding("b1", sealed)}).bindings.empty()) << "the old key is gone";
}

TEST_F(VaultKeeping, APassphraseLocksItUntilSomebodySaysIt) {
  auto sealed = vault::seal_value(open_key(), "hunter2").value();
  auto key = open_key();
  ASSERT_TRUE(wait([&](auto done) { keeper_->protect("correct horse", done); }));
  EXPECT_FALSE(keeper_->state().locked) << "whoever set it need not say it again";
  start();
  EXPECT_TRUE(keeper_->state().locked);
  EXPECT_EQ(open_key(), key);
  EXPECT_TRUE(keeper_->gate_key().empty());
  auto closed = open({binding("b1", sealed)});
  EXPECT_TRUE(closed.bindings.empty());
  EXPECT_NE(closed.missing.find("locked"), std::string::npos) << closed.missing;
  EXPECT_FALSE(wait([&](auto done) { keeper_->reseal_values({sealed}, done); }));
  EXPECT_FALSE(keeper_->begin_rotation());
  bool heard = false;
  keeper_->on_unlock = [&] { heard = true; };
  EXPECT_EQ(wait([&](auto done) { keeper_->unlock("wrong", done); }).error().code, Code::denied);
  EXPECT_FALSE(heard);
  ASSERT_TRUE(wait([&](auto done) { keeper_->unlock("correct horse", done); }));
  EXPECT_TRUE(heard);
  EXPECT_EQ(value_for_gate(open({binding("b1", sealed)}).bindings.at(0)), "hunter2");
}

TEST_F(VaultKeeping, AKeyFileThatCannotBeTrustedIsNoVault) {
  keeper_.reset();
  std::filesystem::permissions(folder_ + "/vault/key", std::filesystem::perms(0644));
  start();
  EXPECT_NE(keeper_->state().trouble, "");
  EXPECT_EQ(keeper_->state().open_key, "");
  auto opened = open({binding("b1", "x")});
  EXPECT_TRUE(opened.bindings.empty());
}

}  // namespace
}  // namespace isola::launcher
