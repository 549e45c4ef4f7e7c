// What the service promises when things go wrong in the middle, and when several callers come at once.
#include <nlohmann/json.hpp>

#include "sandbox/service_fixture.h"

namespace isola::sandbox {
namespace {

using nlohmann::json;

Task<std::shared_ptr<Box::Turn>> take_turn(BoxPtr box) {
  Box::Turn turn = co_await box->turn();
  co_return std::make_shared<Box::Turn>(std::move(turn));
}

TEST_F(ServiceTest, WhatWasBeingMadeWhenTheServerDiedIsEnded) {
  auto half = left(State::creating, [](auto& r) { r.key = "k"; });
  auto whole = left(State::running);
  ASSERT_TRUE(start());
  EXPECT_EQ(fake_.left(), std::set<std::string>{whole});
  EXPECT_EQ(stored(half).state, State::ended);
  EXPECT_EQ(stored(half).end_reason, EndReason::host_restart);
  EXPECT_EQ(stored(whole).state, State::running);
}

TEST_F(ServiceTest, NoQuestionIsTakenOnceItStops) {
  ASSERT_TRUE(start());
  EXPECT_TRUE(wait(service_->ask_ledger("default", {})));
  service_->stop();
  auto late = wait(service_->ask_ledger("default", {}));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Code::unavailable);
}

TEST_F(ServiceTest, ItsTimeIsUpAlsoWhenThatCannotBeWrittenDown) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  fill_disk();
  EXPECT_TRUE(wait(service_->kill(adopted(id), EndReason::deadline, "its time was up")));
  EXPECT_TRUE(fake_.left().empty());
  EXPECT_EQ(stored(id).state, State::running);
  // It is written down as soon as that is possible.
  empty_disk();
  while (stored(id).state != State::ended) std::this_thread::yield();
  EXPECT_EQ(stored(id).end_reason, EndReason::deadline);
}

TEST_F(ServiceTest, WhatTheLauncherCannotEndIsTriedAgain) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.fail(launcher::Op::kill, 1);
  auto killed = wait(service_->kill(box, EndReason::idle, "nobody came"));
  EXPECT_FALSE(killed);
  wait(box->wait_ended());
  EXPECT_EQ(fake_.asked(launcher::Op::kill), 2);
  EXPECT_EQ(stored(id).end_reason, EndReason::idle);
}

// A pause that was asked for on one line to the launcher is told of as an end on another, perhaps after the resume.
TEST_F(ServiceTest, WordOfAnEarlierLifesEndEndsNothing) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  int before = fake_.asked(launcher::Op::own);
  fake_.tell_end(id, EndReason::exited);
  fake_.wait_for(launcher::Op::own, before + 1);
  settle(box);
  EXPECT_EQ(box->state(), State::running);
  fake_.remove(id);
  fake_.tell_end(id, EndReason::oom);
  wait(box->wait_ended());
  EXPECT_EQ(stored(id).end_reason, EndReason::oom);
}

// A pause came through though its launcher was killed: whoever hears of the end looks for the image, and several may.
TEST_F(ServiceTest, APauseThatSeveralFindIsNoEnd) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.add_image({.id = new_image_id(), .sandbox = id, .verb = "pause", .memory = true});
  fake_.remove(id);
  fake_.hold(launcher::Op::images);
  const int before = fake_.asked(launcher::Op::images);
  for (int i = 0; i < 3; ++i) fake_.tell_end(id, EndReason::exited);
  fake_.wait_for(launcher::Op::images, before + 3);
  fake_.release(launcher::Op::images);
  while (box->state() == State::running) std::this_thread::yield();
  settle(box);
  EXPECT_EQ(box->state(), State::paused);
  EXPECT_EQ(stored(id).state, State::paused);
  while (events(id, ledger::Kind::sandbox_paused).empty()) std::this_thread::yield();
  EXPECT_EQ(events(id, ledger::Kind::sandbox_paused).size(), 1u);
  EXPECT_TRUE(events(id, ledger::Kind::sandbox_ended).empty());
}

TEST_F(ServiceTest, AnEndThatNobodyHeardOfIsFound) {
  auto id = left(State::running), other = left(State::running);
  ASSERT_TRUE(start({.sweep = std::chrono::milliseconds(10)}));
  auto box = adopted(id);
  fake_.remove(id);
  wait(box->wait_ended());
  EXPECT_EQ(stored(id).end_reason, EndReason::boundary_failure);
  EXPECT_EQ(stored(other).state, State::running);
}

// Its server died between stopping it and writing that down, and the launcher remembers that it was to stop.
TEST_F(ServiceTest, WhatIsWrittenDownAsRunningIsThawed) {
  auto running = left(State::running), frozen = left(State::frozen);
  ASSERT_TRUE(start());
  EXPECT_EQ(fake_.asked(launcher::Op::thaw), 1);
  EXPECT_EQ(fake_.asked(launcher::Op::freeze), 1);
  EXPECT_EQ(adopted(running)->record().state, State::running);
  EXPECT_EQ(adopted(frozen)->record().state, State::frozen);
}

TEST_F(ServiceTest, ChangesComeOneAfterTheOther) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  auto somebody = wait(take_turn(box));
  Update idle, timeout;
  idle.idle_limit = 1'000'000;
  timeout.timeout = 5'000'000;
  Millis now = now_millis();
  auto one = begin(service_->update(box, idle));
  auto two = net::co_spawn(other_io_, service_->update(box, timeout), net::use_future);
  auto three = begin(service_->freeze(box));
  settle(box);
  EXPECT_EQ(stored(id).lifetime, store::Lifetime());
  EXPECT_EQ(fake_.asked(launcher::Op::freeze), 0);
  somebody.reset();
  ASSERT_TRUE(one.get());
  ASSERT_TRUE(two.get());
  ASSERT_TRUE(three.get());
  auto lifetime = box->record().lifetime;
  EXPECT_EQ(lifetime.idle_limit, *idle.idle_limit);
  EXPECT_GE(lifetime.deadline, now + *timeout.timeout);
  EXPECT_EQ(stored(id).lifetime, lifetime);
  EXPECT_EQ(stored(id).state, State::frozen);
}

TEST_F(ServiceTest, PoliciesReachTheGateAndTheStoreInTheSameOrder) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  EXPECT_EQ(fake_.asked(launcher::Op::set_policy), 1) << "what is written down is in force again";
  fake_.hold(launcher::Op::set_policy);
  NetworkChange first{.network = "allow a.example\ndefault deny\n"},
      second{.network = "allow b.example\ndefault deny\n"};
  auto one = begin(service_->set_network(box, first));
  fake_.wait_for(launcher::Op::set_policy, 2);
  auto two = begin(service_->set_network(box, second));
  settle(box);
  EXPECT_EQ(fake_.asked(launcher::Op::set_policy), 2);
  fake_.release(launcher::Op::set_policy);
  ASSERT_TRUE(one.get());
  ASSERT_TRUE(two.get());
  EXPECT_EQ(stored(id).network, fake_.policy());
  EXPECT_NE(fake_.policy().find("b.example"), std::string::npos);
}

TEST_F(ServiceTest, AnEndThatHasBegunIsNotFrozenOver) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.hold(launcher::Op::freeze);
  fake_.hold(launcher::Op::kill);
  auto frozen = begin(service_->freeze(box));
  fake_.wait_for(launcher::Op::freeze, 1);
  auto killed = begin(service_->kill(box));
  fake_.wait_for(launcher::Op::kill, 1);
  fake_.release(launcher::Op::freeze);
  EXPECT_FALSE(frozen.get());
  EXPECT_EQ(box->state(), State::ending);
  EXPECT_EQ(stored(id).state, State::ending);
  fake_.release(launcher::Op::kill);
  EXPECT_TRUE(killed.get());
  EXPECT_EQ(stored(id).state, State::ended);
}

// The old clock is heard though somebody was told of more time: as one that ran out in the moment before.
TEST_F(ServiceTest, MoreTimeIsNotTakenBackByTheOldClock) {
  const Millis soon = now_millis() + 200;
  std::vector<std::string> ids;
  for (auto at_end : {store::AtEnd::kill, store::AtEnd::pause, store::AtEnd::stop})
    ids.push_back(left(State::running, [&](auto& r) {
      r.lifetime.at_end = at_end;
      r.lifetime.deadline = soon;
    }));
  ASSERT_TRUE(start());
  for (const auto& id : ids) adopted(id)->change([](auto& r) { r.lifetime.deadline += 3'600'000; });
  for (const auto& id : ids) {
    auto box = adopted(id);
    ASSERT_TRUE(box);
    while (now_millis() <= soon) settle(box);
    settle(box);
    EXPECT_EQ(box->state(), State::running) << box->record().end_detail;
  }
  EXPECT_EQ(fake_.asked(launcher::Op::kill), 0);
  EXPECT_EQ(fake_.asked(launcher::Op::checkpoint), 0);
  // Nor is it forgotten.
  for (const auto& id : ids) {
    auto box = adopted(id);
    Update update;
    update.timeout = 1;
    ASSERT_TRUE(wait(service_->update(box, update)));
    while (box->state() == State::running) std::this_thread::yield();
  }
}

TEST_F(ServiceTest, MoreTimeForOneThatIsEndingIsRefused) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.hold(launcher::Op::kill);
  auto killed = begin(service_->kill(box, EndReason::deadline));
  fake_.wait_for(launcher::Op::kill, 1);
  Update update;
  update.timeout = 3'600'000;
  auto changed = wait(service_->update(box, update));
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, Code::not_found);
  fake_.release(launcher::Op::kill);
  EXPECT_TRUE(killed.get());
}

TEST_F(ServiceTest, AChangeThatIsRefusedChangesNothing) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  Update update;
  update.idle_limit = 77'000;
  update.metadata = store::Labels{{"large", std::string(kMaxMetadata + 1, 'x')}};
  auto changed = wait(service_->update(box, update));
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code, Code::invalid);
  update.metadata = store::Labels{{"bad", "\xff"}};  // only the store finds out
  EXPECT_FALSE(wait(service_->update(box, update)));
  EXPECT_EQ(box->record().lifetime.idle_limit, 0);
  EXPECT_EQ(stored(id).lifetime.idle_limit, 0);
  // The same for a policy that comes with notes.
  const int before = fake_.asked(launcher::Op::set_policy);
  NetworkChange network{.network = "all"};
  network.notes["large"] = std::string(kMaxMetadata + 1, 'x');
  EXPECT_FALSE(wait(service_->set_network(box, network)));
  EXPECT_EQ(fake_.asked(launcher::Op::set_policy), before);
}

// A header with a value of the sandbox's own, as a dialect asks for it.
NetworkChange with_value(const char* value) {
  NetworkChange change{.network = "default allow\n"};
  NetworkGrant grant;
  grant.binding.names = {"api.example.org"};
  grant.binding.place = vault::Place::header;
  grant.binding.field = "X-Key";
  grant.value = std::make_shared<vault::Secret>(value);
  change.grants.emplace().push_back(std::move(grant));
  return change;
}

TEST_F(ServiceTest, WhatANetworkBringsAlongIsInForceWithItOrNotAtAll) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  ASSERT_TRUE(wait(service_->set_network(box, with_value("first"))));
  auto told = fake_.bindings();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_TRUE(told[0].second.ends_with("first"));  // behind the mark of a plain value
  EXPECT_TRUE(box->record().keep_grants && stored(id).keep_grants);
  EXPECT_TRUE(service_->store().list_secrets("default")->empty());
  EXPECT_EQ(service_->find_secret("default", told[0].first.secret).error().code, Code::not_found);
  const auto before = events(id, ledger::Kind::grant_created).size();
  EXPECT_EQ(before, 1u);

  fake_.fail(launcher::Op::set_policy, 1);
  EXPECT_FALSE(wait(service_->set_network(box, with_value("second"))));
  ASSERT_EQ(fake_.bindings().size(), 1u);
  EXPECT_TRUE(fake_.bindings()[0].second.ends_with("first"));
  EXPECT_EQ(fake_.bindings()[0].first.id, told[0].first.id);

  fill_disk();
  EXPECT_FALSE(wait(service_->set_network(box, with_value("third"))));
  empty_disk();
  EXPECT_TRUE(fake_.bindings()[0].second.ends_with("first"));
  EXPECT_EQ(store_->list_bindings("default", store::BindingScope::sandbox, id)->size(), 1u);
  EXPECT_EQ(store_->all_secrets()->size(), 1u);

  ASSERT_TRUE(wait(service_->set_network(box, {.network = "default allow\n", .grants = std::vector<NetworkGrant>()})));
  EXPECT_TRUE(fake_.bindings().empty());
  EXPECT_TRUE(store_->all_secrets()->empty());
}

// Whoever tells a gate of something else, and the next server, find what the store has.
TEST_F(ServiceTest, AGrantIsInTheLedgerBeforeTheStoreHasIt) {
  auto id = left(State::running, [](store::SandboxRecord& r) { r.network = "default allow\n"; });
  ASSERT_TRUE(start());
  SecretRequest secret{.project = "default", .name = "token"};
  secret.value = vault::Secret("some value to be sent");
  ASSERT_TRUE(wait(service_->put_secret(std::move(secret), false)));
  ASSERT_TRUE(wait(service_->set_network(adopted(id), with_value("first"))));
  const std::string first = store_->list_bindings("default")->at(0).id;
  auto bind = [&] {
    BindRequest asked{.project = "default", .subject = id};
    asked.binding.secret = "token";
    asked.binding.names = {"api.example.org"};
    return wait(service_->bind(std::move(asked)));
  };
  auto told = [&] {
    std::vector<std::string> all;
    EXPECT_TRUE(ledger_->flush());
    const auto grants = ledger_->query({.sandbox = id, .kind_prefix = "grant."}).value();
    for (const auto& event : grants) {
      auto data = json::parse(event.data);
      std::string line = event.kind == ledger::Kind::grant_created ? "created" : "revoked";
      if (data["binding"] == first) line += " first";
      all.push_back(line + (data.contains("reason") ? ": " + data["reason"].get<std::string>() : ""));
    }
    return all;
  };
  run_sql("CREATE TRIGGER no_room BEFORE INSERT ON bindings BEGIN SELECT RAISE(ABORT, 'no room for bindings'); END");
  auto bound = bind();
  ASSERT_FALSE(bound);
  EXPECT_NE(bound.error().message.find("no room for bindings"), std::string::npos) << bound.error().message;
  std::vector<std::string> expected = {"created first", "created", "revoked: it could not be granted"};
  EXPECT_EQ(told(), expected);
  EXPECT_FALSE(wait(service_->set_network(adopted(id), with_value("second"))));
  for (const char* line : {"revoked first: the sandbox's network was changed", "created",
                           "revoked: it could not be granted", "created first: a change was refused"})
    expected.emplace_back(line);
  EXPECT_EQ(told(), expected);
  ASSERT_EQ(fake_.bindings().size(), 1u);
  EXPECT_EQ(fake_.bindings()[0].first.id, first);
  // What the ledger does not take the store is not even asked for.
  on_ledger("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END");
  bound = bind();
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().message.find("no room for bindings"), std::string::npos) << bound.error().message;
  auto changed = wait(service_->set_network(adopted(id), with_value("third")));
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().message.find("no room for bindings"), std::string::npos) << changed.error().message;
  on_ledger("DROP TRIGGER full");
  EXPECT_EQ(store_->list_bindings("default")->size(), 1u);
}

// What the gate refused goes from the store before the ledger says so; and where the store keeps it, it is said to be
// there, as it will be.
TEST_F(ServiceTest, WhatTheStoreDoesNotLetGoOfIsSaidToBeThere) {
  auto id = left(State::running, [](store::SandboxRecord& r) { r.network = "default allow\n"; });
  ASSERT_TRUE(start());
  SecretRequest secret{.project = "default", .name = "token"};
  secret.value = vault::Secret("some value to be sent");
  ASSERT_TRUE(wait(service_->put_secret(std::move(secret), false)));
  auto refused = [&] {
    BindRequest asked{.project = "default", .subject = id};
    asked.binding.secret = "token";
    asked.binding.names = {"api.example.org"};
    fake_.fail(launcher::Op::set_policy, 1);
    auto bound = wait(service_->bind(std::move(asked)));
    EXPECT_FALSE(bound);
    return bound ? std::string() : bound.error().message;
  };
  std::vector<std::string> expected;
  auto tells = [&](std::initializer_list<const char*> more) {
    for (const char* line : more) expected.emplace_back(line);
    EXPECT_TRUE(ledger_->flush());
    std::vector<std::string> all;
    const auto grants = ledger_->query({.sandbox = id, .kind_prefix = "grant."}).value();
    for (const auto& event : grants)
      all.push_back(std::string(to_string(event.kind)) + " " + json::parse(event.data).value("reason", ""));
    EXPECT_EQ(all, expected);
  };
  EXPECT_EQ(refused().find("stays"), std::string::npos);
  tells({"grant.created ", "grant.revoked it could not be granted"});
  EXPECT_TRUE(store_->list_bindings("default")->empty());
  run_sql("CREATE TRIGGER full BEFORE DELETE ON bindings BEGIN SELECT RAISE(ABORT, 'full'); END");
  EXPECT_NE(refused().find("stays"), std::string::npos);
  tells({"grant.created ", "grant.created it could not be taken away"});
  EXPECT_EQ(store_->list_bindings("default")->size(), 1u);
  fake_.fail(launcher::Op::set_policy, 1);
  EXPECT_FALSE(wait(service_->set_network(adopted(id), with_value("first"))));
  tells({"grant.created ", "grant.revoked it could not be granted", "grant.created it could not be taken away"});
  EXPECT_EQ(store_->list_bindings("default")->size(), 2u);
  empty_disk();
}

// The next server finds what the store has forgotten nowhere else.
TEST_F(ServiceTest, WhatIsOverIsInTheLedgerBeforeTheStoreForgetsIt) {
  auto open = [](store::SandboxRecord& r) { r.network = "default allow\n"; };
  auto id = left(State::running, open);
  auto sleeper = left(State::paused, [&](auto& r) { open(r), r.image = "m12345678901234567890"; });
  fake_.forget(sleeper);
  ASSERT_TRUE(start());
  auto token = [] {
    SecretRequest secret{.project = "default", .name = "token"};
    secret.value = vault::Secret("some value to be sent");
    return secret;
  };
  ASSERT_TRUE(wait(service_->put_secret(token(), false)));
  auto bind = [&](const std::string& subject, Millis expires) {
    store::BindingRecord binding{.id = new_binding_id(), .project = "default"};
    binding.subject = subject, binding.secret = "token", binding.expires = expires;
    binding.body = R"({"secret":"token","names":["a.example"]})";
    ASSERT_TRUE(store_->insert_binding(binding));
  };
  bind(id, 0), bind(id, 1), bind(sleeper, 0);
  auto listener = service_->events().subscribe("default", id);
  on_ledger("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END");
  fake_.fail(launcher::Op::set_policy, 1);
  EXPECT_FALSE(wait(service_->put_secret(token(), true)));  // what cannot be told is looked after, and what is over
  for (;;) {
    auto event = wait(listener->next_for(std::chrono::seconds(60)));
    ASSERT_TRUE(event);
    if (event->kind == ledger::Kind::grant_revoked) break;
  }
  EXPECT_EQ(store_->list_bindings("default")->size(), 3u);
  EXPECT_FALSE(wait(service_->resume(adopted(sleeper), ResumeRequest())));
  EXPECT_EQ(store_->list_bindings("default", store::BindingScope::sandbox, sleeper)->size(), 1u);
  EXPECT_EQ(stored(sleeper).state, State::paused);
  on_ledger("DROP TRIGGER full");
  while (store_->list_bindings("default", store::BindingScope::sandbox, id)->size() > 1) std::this_thread::yield();
  EXPECT_EQ(events(id, ledger::Kind::grant_revoked).size(), 1u);
}

// A server wrote that it is over, and was killed before the store knew.
TEST_F(ServiceTest, ARevocationThatWasCutOffIsTakenBack) {
  auto id = left(State::running);
  ASSERT_TRUE(store_->insert_secret({.project = "default", .name = "token", .sealed = "of somebody"}));
  store::BindingRecord binding{.id = new_binding_id(), .project = "default"};
  binding.subject = id, binding.secret = "token", binding.body = R"({"secret":"token","names":["a.example"]})";
  ASSERT_TRUE(store_->insert_binding(binding));
  const std::string gone = new_binding_id();
  for (const auto& [one, kind] :
       {std::pair(binding.id, ledger::Kind::grant_created), std::pair(binding.id, ledger::Kind::grant_revoked),
        std::pair(gone, ledger::Kind::grant_revoked)}) {
    ledger::Event event{.project = "default", .sandbox = id, .kind = kind};
    event.time = now_millis() - 600'000;
    event.data = json{{"binding", one}}.dump();
    ASSERT_TRUE(ledger_->append_durably(event));
  }
  // The next one came minutes later, and not far; and this one has told that it begins.
  ledger::Event begun{.time = now_millis() - 300'000, .project = "default", .kind = ledger::Kind::server_started};
  ASSERT_TRUE(ledger_->append_durably(begun));
  const uint64_t before = ledger_->head().seq;
  begun.time = now_millis();
  ASSERT_TRUE(ledger_->append_durably(begun));
  begun.kind = ledger::Kind::sandbox_ended;
  ASSERT_TRUE(ledger_->append_durably(begun));
  ASSERT_TRUE(start({}, before));
  ASSERT_TRUE(ledger_->flush());
  auto told = events(id, ledger::Kind::grant_created);
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(json::parse(told[1].data)["binding"], binding.id);
  EXPECT_EQ(events(id, ledger::Kind::grant_revoked).size(), 2u);
}

// Somebody has the sandbox's turn, and does not get on; another sandbox is just as slow.
TEST_F(ServiceTest, ARevocationWaitsForNobody) {
  auto open = [](store::SandboxRecord& r) { r.network = "default allow\n", r.granted = true; };
  auto first = left(State::running, open), second = left(State::running, open);
  ASSERT_TRUE(start());
  SecretRequest secret{.project = "default", .name = "token"};
  secret.value = vault::Secret("some value to be sent");
  ASSERT_TRUE(wait(service_->put_secret(std::move(secret), false)));
  BindRequest asked{.project = "default", .scope = store::BindingScope::project};
  asked.binding.secret = "token";
  asked.binding.names = {"api.example.org"};
  auto bound = wait(service_->bind(std::move(asked)));
  ASSERT_TRUE(bound) << bound.error().message;
  auto turn = wait(take_turn(adopted(first)));
  fake_.hold(launcher::Op::set_policy);
  auto gone = begin(service_->unbind("default", bound->id, Caller()));
  fake_.wait_for(launcher::Op::revoke, 2);
  auto revoked = fake_.revoked();
  EXPECT_EQ(std::set<std::string>(revoked.begin(), revoked.end()),
            (std::set<std::string>{first + " " + bound->id, second + " " + bound->id}));
  ASSERT_TRUE(ledger_->flush());
  EXPECT_EQ(events("", ledger::Kind::grant_revoked).size(), 1u);
  turn->release();
  fake_.release(launcher::Op::set_policy);
  auto done = gone.get();
  EXPECT_TRUE(done) << done.error().message;
}

TEST_F(ServiceTest, WhatIsRefusedForTheSakeOfASecretIsToldOfTheSecret) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  gate::Event denied{.sandbox = id, .name = "api.example.org", .port = 443, .reason = gate::Reason::placeholder};
  fake_.tell_gate(denied, 1);
  denied.binding = "b1", denied.secret = "token";
  fake_.tell_gate(denied, 2);
  settle(box);  // behind them, on the same line
  ASSERT_TRUE(ledger_->flush());
  EXPECT_EQ(events(id, ledger::Kind::egress_denied).size(), 1u);
  auto told = events(id, ledger::Kind::secret_denied);
  ASSERT_EQ(told.size(), 1u);
  auto data = json::parse(told[0].data);
  EXPECT_EQ(data["secret"], "token");
  EXPECT_EQ(data["reason"], "placeholder");
  EXPECT_EQ(ledger_->query({.secret = "token"})->size(), 1u) << "`isola audit secret` finds it";
}

// What the launcher has kept for a server that was away: with the time at which it happened, and each once.
TEST_F(ServiceTest, WhatTheGateToldIsAcknowledgedWhenItIsInTheLedger) {
  auto id = left(State::running);
  auto over = left(State::running);
  ledger::Event before{.sandbox = id, .kind = ledger::Kind::secret_used, .data = R"({"gate_event":41})"};
  before.project = "default";
  ASSERT_TRUE(ledger_->append_durably(before));
  ASSERT_TRUE(store_->set_end(over, EndReason::killed, "", now_millis()));
  ASSERT_TRUE(start());
  EXPECT_EQ(fake_.known(), 41u) << "of the server before this one";
  gate::Event used{.sandbox = id, .kind = gate::Event::Kind::injected, .name = "api.example.org", .when = 1234};
  used.binding = "b1", used.secret = "token";
  for (uint64_t number : {40, 41, 42, 42, 43}) fake_.tell_gate(used, number);
  used.sandbox = over;
  fake_.tell_gate(used, 44);
  used.sandbox = new_sandbox_id();
  fake_.tell_gate(used, 45);
  fake_.tell_gate({.kind = gate::Event::Kind::restarted, .when = 1235}, 46);
  fake_.wait_for_acknowledgement(46);
  auto told = events(id, ledger::Kind::secret_used);
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[1].time, 1234);
  EXPECT_EQ(json::parse(told[2].data)["gate_event"], 43);
  EXPECT_EQ(events(over, ledger::Kind::secret_used).size(), 1u) << "it ended while no server ran";
  EXPECT_EQ(events(used.sandbox, ledger::Kind::secret_used).size(), 1u) << "and this one nobody knows";
  EXPECT_EQ(events("", ledger::Kind::gate_restarted).size(), 1u);
}

// It is told up to a second later, when that command may be over and another one's runs.
TEST_F(ServiceTest, WhatTheGateToldIsOfTheTaskThatRanThen) {
  auto id = left(State::running, [](auto& r) { r.task = "own"; });
  ASSERT_TRUE(start());
  auto box = adopted(id);
  auto begins = [&](const char* command, const char* task, Millis started) {
    CommandInfo info;
    info.id = command, info.task = task, info.started = started;
    ASSERT_TRUE(box->remember(info));
  };
  begins("c123456789012", "first", 1000);
  begins("c123456789013", "second", 2000);
  box->command_ended("c123456789012", guest::Exit());
  box->unasked = false;  // there is no guest to ask
  uint64_t number = 0;
  auto told = [&](Millis when, uint32_t count = 1, bool bytes = true) {
    gate::Event used{.sandbox = id, .kind = gate::Event::Kind::injected, .count = count, .when = when};
    if (bytes) used.kind = gate::Event::Kind::closed, used.up = 100;
    fake_.tell_gate(used, ++number);
    fake_.wait_for_acknowledgement(number);
    auto entry = events(id, bytes ? ledger::Kind::egress_allowed : ledger::Kind::secret_used).back();
    return entry.task + json::parse(entry.data).value("tasks", json::array()).dump();
  };
  EXPECT_EQ(told(500), "own[]");
  EXPECT_EQ(told(1500), "first[]");
  EXPECT_EQ(told(2500), R"(own["first","second"])");
  EXPECT_EQ(told(2500, 7), R"(own["first","second"])");
  const Millis now = now_millis() + 1;
  EXPECT_EQ(told(now, 1, false), "second[]");
  EXPECT_EQ(told(now), R"(own["first","second"])") << "it may have moved them before it ended";
  EXPECT_EQ(told(now + 1500, 1), "second[]");
  EXPECT_EQ(told(now + 1500, 7, false), R"(own["first","second"])") << "some of them were held back";
  ASSERT_TRUE(wait(service_->flush_ledger()));
  EXPECT_EQ(service_->used_by(box).bytes_out, 600u);
  Accounts next(*ledger_, {});
  auto again = std::make_shared<Box>(io_, box->record());
  ASSERT_TRUE(next.begin_box(*again));
  EXPECT_EQ(again->meter().fresh["first"].bytes_out, 250u) << "also of who starts after a kill";
  EXPECT_EQ(again->meter().fresh["second"].bytes_out, 250u);
  EXPECT_EQ(again->meter().fresh["own"].bytes_out, 100u);
}

// Without it nothing goes out that should not, but its programs trust nobody: whoever looks finds out why.
TEST_F(ServiceTest, ACertificateThatCannotBePlacedIsToldOf) {
  auto id = left(State::running, [](store::SandboxRecord& r) { r.network = "default allow\n"; });
  ASSERT_TRUE(start());
  fake_.fail(launcher::Op::certificate, 1);
  ASSERT_TRUE(wait(service_->set_network(adopted(id), with_value("some value"))));
  ASSERT_TRUE(ledger_->flush());
  auto told = events(id, ledger::Kind::sandbox_updated);
  ASSERT_FALSE(told.empty());
  auto data = json::parse(told.back().data);
  EXPECT_EQ(data.value("failed", ""), "the fake launcher was told to fail") << told.back().data;
}

// Nothing is thawed for its sake; and whoever died before it was placed leaves it to the next server.
TEST_F(ServiceTest, ACertificateThatCouldNotBePlacedIsPlacedWhenTheSandboxRunsAgain) {
  auto inspected = [](store::SandboxRecord& r) { r.network = "allow a.example methods GET\n"; };
  auto frozen = left(State::frozen, inspected);
  auto plain = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(plain);
  ASSERT_TRUE(wait(service_->freeze(box, kIdleFreeze)));
  const int thawed = fake_.asked(launcher::Op::thaw);  // by the look at what an earlier server left
  ASSERT_TRUE(wait(service_->set_network(box, with_value("some value"))));
  settle(box);
  EXPECT_EQ(fake_.asked(launcher::Op::certificate), 0);
  EXPECT_EQ(fake_.asked(launcher::Op::thaw), thawed);
  EXPECT_EQ(box->state(), State::frozen);
  ASSERT_TRUE(wait(service_->thaw(box)));
  fake_.wait_for(launcher::Op::certificate, 1);
  ASSERT_TRUE(wait(service_->thaw(adopted(frozen))));
  fake_.wait_for(launcher::Op::certificate, 2);
}

TEST_F(ServiceTest, ACertificateIsLookedAfterByTheNextServer) {
  left(State::running, [](store::SandboxRecord& r) { r.network = "allow a.example methods GET\n"; });
  ASSERT_TRUE(start());
  fake_.wait_for(launcher::Op::certificate, 1);
}

// Its resume would take away what it was just told to have.
TEST_F(ServiceTest, WhoSleepsIsGrantedNothingThatItsResumeTakesAway) {
  auto asleep = [&](bool keeps) {
    auto id = left(State::paused, [&](store::SandboxRecord& r) {
      r.network = "default allow\n", r.image = "m12345678901234567890", r.keep_grants = keeps;
    });
    fake_.forget(id);
    return id;
  };
  auto forgets = asleep(false), keeps = asleep(true);
  ASSERT_TRUE(start());
  SecretRequest secret{.project = "default", .name = "token"};
  secret.value = vault::Secret("some value to be sent");
  ASSERT_TRUE(wait(service_->put_secret(std::move(secret), false)));
  auto bound = [&](const std::string& id) {
    BindRequest asked{.project = "default", .subject = id};
    asked.binding.secret = "token";
    asked.binding.names = {"api.example.org"};
    return wait(service_->bind(std::move(asked)));
  };
  auto refused = bound(forgets);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("keeps no grants"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(store_->list_bindings("default", store::BindingScope::sandbox, forgets)->empty());
  auto kept = bound(keeps);
  EXPECT_TRUE(kept) << kept.error().message;
}

// A disk that is full, and a queue that is: what is not written is told when it can be, and what the gate told waits.
TEST_F(ServiceTest, WhatTheLedgerDoesNotTakeIsCounted) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  on_ledger("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'full'); END");
  while (ledger_->append({.project = "default", .kind = ledger::Kind::file_written})) {
  }
  for (const char* policy : {"default allow\n", "default deny\n"})
    ASSERT_TRUE(wait(service_->set_network(adopted(id), {.network = policy})));
  gate::Event used{.sandbox = id, .kind = gate::Event::Kind::injected, .name = "api.example.org", .when = 1234};
  used.binding = "b1", used.secret = "token";
  fake_.tell_gate(used, 7);
  fake_.wait_for_listening(2);  // it was refused, and is asked for again
  on_ledger("DROP TRIGGER full");
  ASSERT_TRUE(ledger_->flush());
  fake_.tell_gate(used, 7);
  fake_.wait_for_acknowledgement(7);
  EXPECT_EQ(events(id, ledger::Kind::secret_used).size(), 1u);
  ASSERT_TRUE(wait(service_->set_network(adopted(id), {.network = "default allow\n"})));
  ASSERT_TRUE(ledger_->flush());
  auto lost = events("", ledger::Kind::ledger_lost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_GE(json::parse(lost[0].data)["entries"].get<int>(), 2);
}

// What was bound may still come out, though nobody who starts now has seen the binding.
TEST_F(ServiceTest, WhatWasBoundOnceIsSearchedForAfterARestart) {
  auto open = [](store::SandboxRecord& r) { r.network = "default allow\n"; };
  auto never = left(State::running, open);
  auto once = left(State::running, [&](auto& r) { open(r), r.screened = true; });
  auto closed = left(State::running, [&](auto& r) { r.screened = true; });
  ASSERT_TRUE(start());
  EXPECT_FALSE(adopted(never)->screening()->on());
  EXPECT_TRUE(adopted(once)->screening()->on());
  EXPECT_TRUE(adopted(closed)->screening()->on()) << "it reaches nothing any more, and still has what it had";
  ASSERT_TRUE(wait(service_->set_network(adopted(never), with_value("some value"))));
  EXPECT_TRUE(adopted(never)->screening()->on());
  EXPECT_TRUE(stored(never).screened);
  ASSERT_TRUE(wait(
      service_->set_network(adopted(never), {.network = "default allow\n", .grants = std::vector<NetworkGrant>()})));
  EXPECT_TRUE(stored(never).screened) << "it is gone, and was there";
}

TEST_F(ServiceTest, OneBadSandboxKeepsNobodyFromTheOthers) {
  auto bad = left(State::running, [](auto& r) { r.created = 1; });  // the first to be looked at
  auto good = left(State::running);
  fake_.fail(launcher::Op::own, 1);
  auto started = start();
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_TRUE(adopted(bad));
  EXPECT_TRUE(adopted(good));
  fake_.wait_for(launcher::Op::own, 3);  // … and again
}

// The store and the gate work at the same time; what only one of them took ends again.
TEST_F(ServiceTest, ACreateIsWrittenDownWhileTheGateTakesItsPolicy) {
  ASSERT_TRUE(start());
  fake_.hold(launcher::Op::set_policy);
  auto created = begin(service_->create(reaching_out()));
  fake_.wait_for(launcher::Op::set_policy, 1);
  net::post(io_, net::use_future([] {})).get();  // behind what the worker was just at
  EXPECT_EQ(states(), std::vector{State::running});
  fake_.release(launcher::Op::set_policy);
  EXPECT_TRUE(created.get());
}

TEST_F(ServiceTest, WhatCanBeFoundByItsNameIsWrittenDownWhenItsPolicyIsInForce) {
  ASSERT_TRUE(start());
  fake_.hold(launcher::Op::set_policy);
  auto request = reaching_out();
  request.name = "first";
  auto created = begin(service_->create(request));
  fake_.wait_for(launcher::Op::set_policy, 1);
  net::post(io_, net::use_future([] {})).get();
  EXPECT_TRUE(states().empty());
  fake_.release(launcher::Op::set_policy);
  EXPECT_TRUE(created.get());
  EXPECT_EQ(states(), std::vector{State::running});
}

// What is being made ready is among ours: nobody's remains stay for as long as somebody's hooks take.
TEST_F(ServiceTest, ASlowHookKeepsNoStranger) {
  // Patience: what the kill at the end waits for, since nobody answers it.
  ASSERT_TRUE(start({.patience = std::chrono::seconds(3), .sweep = std::chrono::milliseconds(10)}));
  auto request = reaching_out();
  request.on_create = {"sleep 600"};
  auto created = begin(service_->create(request));  // its guest never answers
  fake_.wait_for(launcher::Op::set_policy, 1);
  fake_.add("istranger");
  fake_.wait_for_lists(4);
  auto left = fake_.left();
  EXPECT_FALSE(left.contains("istranger"));
  EXPECT_EQ(created.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  left.erase("istranger");
  ASSERT_EQ(left.size(), 1u);
  auto box = adopted(*left.begin());
  ASSERT_TRUE(box);
  box->unasked = false;  // there is no guest to ask
  EXPECT_TRUE(wait(service_->kill(box)));
  EXPECT_FALSE(created.get());
}

TEST_F(ServiceTest, APolicyThatIsNotTakenEndsWhatIsWrittenDown) {
  ASSERT_TRUE(start());
  fake_.fail(launcher::Op::set_policy, 1);
  auto created = wait(service_->create(reaching_out()));
  ASSERT_FALSE(created);
  EXPECT_NE(created.error().message.find("was told to fail"), std::string::npos) << created.error().message;
  EXPECT_TRUE(fake_.left().empty());
  EXPECT_EQ(states(), std::vector{State::ended});
}

TEST_F(ServiceTest, WhatTheStoreDoesNotTakeEndsThoughTheGateTookIt) {
  ASSERT_TRUE(start());
  run_sql("CREATE TRIGGER no_room BEFORE INSERT ON sandboxes BEGIN SELECT RAISE(ABORT, 'full'); END");
  EXPECT_FALSE(wait(service_->create(reaching_out())));
  EXPECT_TRUE(fake_.left().empty());
  EXPECT_TRUE(states().empty());
}

TEST_F(ServiceTest, AKeyIsNotAnsweredWithWhatIsEnding) {
  auto id = left(State::running, [](auto& r) { r.key = "k"; });
  ASSERT_TRUE(start());
  auto box = adopted(id);
  fake_.hold(launcher::Op::kill);
  auto killed = begin(service_->kill(box));
  fake_.wait_for(launcher::Op::kill, 1);
  CreateRequest request;
  request.key = "k";
  auto created = begin(service_->create(request));
  settle(box);
  EXPECT_EQ(created.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  fake_.release(launcher::Op::kill);
  ASSERT_TRUE(killed.get());
  EXPECT_FALSE(created.get());  // a new one was tried: there is no template here
}

TEST_F(ServiceTest, AnEndIsInTheLedgerBeforeAnybodyIsTold) {
  auto id = left(State::running, [](auto& r) { r.actor = "alice"; });
  ASSERT_TRUE(start());
  Caller bob("kbob");
  ASSERT_TRUE(wait(service_->kill(adopted(id), EndReason::killed, "", bob)));
  auto ended = events(id, ledger::Kind::sandbox_ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].key, "kbob");
  EXPECT_EQ(ended[0].actor, "kbob");
}

// Whoever killed it, or the server, right after a command was answered: nobody can ask the sandbox for it later.
TEST_F(ServiceTest, WhatItsCommandsDidIsWrittenDownBeforeItEnds) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  CommandInfo info;
  info.id = "c123456789012";
  ASSERT_TRUE(box->remember(info));
  box->unasked = false;  // there is no guest to ask
  ledger::Event event;
  event.project = "default";
  event.sandbox = id;
  event.kind = ledger::Kind::command_started;
  event.data = "{}";
  ASSERT_TRUE(ledger_->append(event));
  fake_.hold(launcher::Op::kill);
  auto killed = begin(service_->kill(box));
  fake_.wait_for(launcher::Op::kill, 1);
  EXPECT_EQ(events(id, ledger::Kind::command_started).size(), 1u);
  fake_.release(launcher::Op::kill);
  EXPECT_TRUE(killed.get());
}

// It is told behind the answer, and before whoever asks the ledger.
TEST_F(ServiceTest, ACommandsEndIsThereForWhoeverAsks) {
  auto id = left(State::running);
  ASSERT_TRUE(start());
  auto box = adopted(id);
  CommandInfo info;
  info.id = "c123456789012";
  ASSERT_TRUE(box->remember(info));
  guest::Exit exit;
  exit.code = 7;
  service_->command_ended(box, info.id, exit);
  service_->command_ended(box, info.id, exit);
  ASSERT_TRUE(wait(service_->flush_ledger()));
  auto ended = events(id, ledger::Kind::command_ended);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(json::parse(ended[0].data)["exit_code"], 7);
  box->unasked = false;  // there is no guest to ask
}

// The store had it when its server was killed, and the ledger had not.
TEST_F(ServiceTest, ABirthThatTheLedgerMissedIsWrittenAtTheStart) {
  auto id = left(State::running, [](auto& r) {
    r.actor = "alice";
    r.made_by = "kbob";
  });
  ASSERT_TRUE(start());
  ASSERT_TRUE(wait(service_->flush_ledger()));
  auto created = events(id, ledger::Kind::sandbox_created);
  ASSERT_EQ(created.size(), 1u);
  EXPECT_EQ(created[0].key, "kbob");
  EXPECT_EQ(created[0].actor, "alice");
  EXPECT_EQ(json::parse(created[0].data)["created"], stored(id).created);
}

TEST_F(ServiceTest, ABirthThatTheLedgerHasIsNotWrittenAgain) {
  auto id = left(State::running);
  ledger::Event event;
  event.project = "default";
  event.sandbox = id;
  event.kind = ledger::Kind::sandbox_created;
  event.data = "{}";
  ASSERT_TRUE(ledger_->append_durably(event));
  ASSERT_TRUE(start());
  ASSERT_TRUE(wait(service_->flush_ledger()));
  EXPECT_EQ(events(id, ledger::Kind::sandbox_created).size(), 1u);
}

TEST_F(ServiceTest, AnEndThatOnlyTheLedgerKnowsIsTheEnd) {
  auto id = left(State::running);
  ledger::Event event;
  event.project = "default";
  event.sandbox = id;
  event.kind = ledger::Kind::sandbox_ended;
  event.data = R"({"reason":"idle","detail":"nobody came"})";
  ASSERT_TRUE(ledger_->append_durably(event));
  fake_.forget(id);
  ASSERT_TRUE(start());
  EXPECT_EQ(stored(id).state, State::ended);
  EXPECT_EQ(stored(id).end_reason, EndReason::idle);
  EXPECT_EQ(stored(id).end_detail, "nobody came");
  EXPECT_EQ(events(id, ledger::Kind::sandbox_ended).size(), 1u);
}

// Of two who set a task's budget at the same moment one is the last, in the store and in force.
TEST_F(ServiceTest, TheBudgetThatIsStoredIsTheOneInForce) {
  ledger::UsageRow row{.project = "default", .sandbox = "i1", .task = "t", .from = 1, .to = 2, .used = {.commands = 1}};
  ASSERT_TRUE(ledger_->record_usage(row));
  ASSERT_TRUE(ledger_->flush());
  ASSERT_TRUE(start());
  auto set = [&](net::io_context& where, uint64_t commands) {
    store::Budget budget{.commands = commands};
    return net::co_spawn(where, service_->set_task_budget("default", "t", budget), net::use_future);
  };
  for (int i = 0; i < 500; ++i) {
    auto small = set(io_, 1), large = set(other_io_, 1000);
    ASSERT_TRUE(small.get());
    ASSERT_TRUE(large.get());
    auto use = wait(service_->task_use("default", "t"));
    ASSERT_TRUE(use);
    ASSERT_EQ(use->spent, use->budget.commands == 1 ? "commands" : "") << i;
  }
}

TEST_F(ServiceTest, TheLedgerSaysWhoChangedWhat) {
  auto id = left(State::running, [](auto& r) { r.actor = "alice"; });
  ASSERT_TRUE(start());
  auto box = adopted(id);
  Update update;
  update.idle_limit = 5000;
  update.metadata = store::Labels{{"a", "b"}};
  Caller bob("kbob", "alice");  // says so, and is not
  ASSERT_TRUE(wait(service_->update(box, update, bob)));
  auto flushed = wait(service_->flush_ledger());
  ASSERT_TRUE(flushed);
  auto updated = events(id, ledger::Kind::sandbox_updated);
  ASSERT_EQ(updated.size(), 1u);
  EXPECT_EQ(updated[0].key, "kbob");
  EXPECT_EQ(updated[0].actor, "alice");
  EXPECT_EQ(json::parse(updated[0].data)["changed"], json::array({"idle_timeout", "metadata"}));
}

}  // namespace
}  // namespace isola::sandbox
