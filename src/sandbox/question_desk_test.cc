#include "sandbox/question_desk.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <future>
#include <stdexcept>
#include <vector>

namespace isola::sandbox {
namespace {

namespace asio = boost::asio;

struct Worker {
  asio::io_context context;
  QuestionDesk desk;
  std::vector<std::string> order;  // in which answers came

  void ask(const std::string& project, const std::string& name, std::function<Result<int>()> question) {
    auto asking = [this, project, name, question]() -> Task<void> {
      auto said = co_await desk.ask<int>(project, question);
      order.push_back(said ? name : name + ": " + std::string(to_string(said.error().code)));
    };
    asio::co_spawn(context, asking, asio::detached);
  }
};

// The one worker that there is lets the question's answer come: it would stand still here for ever, did it wait itself.
TEST(QuestionDesk, TheWorkerGoesOnMeanwhile) {
  Worker worker;
  std::promise<void> word;
  auto heard = word.get_future().share();
  worker.ask("p", "slow", [heard]() -> Result<int> {
    heard.wait();
    return 7;
  });
  asio::post(worker.context, [&] { word.set_value(); });
  worker.context.run();
  EXPECT_EQ(worker.order, std::vector<std::string>{"slow"});
}

TEST(QuestionDesk, OneThatThrowsIsAnswered) {
  Worker worker;
  worker.ask("p", "thrown", []() -> Result<int> { throw std::runtime_error("no memory"); });
  worker.ask("p", "next", [] { return Result<int>(1); });
  worker.context.run();
  EXPECT_EQ(worker.order, (std::vector<std::string>{"thrown: internal", "next"}));
}

TEST(QuestionDesk, EachProjectInItsTurn) {
  Worker worker;
  std::promise<void> word;
  auto heard = word.get_future().share();
  std::mutex mutex;
  std::vector<std::string> asked;
  auto question = [&](const std::string& name) {
    return [&, name]() -> Result<int> {
      heard.wait();
      std::lock_guard lock(mutex);
      asked.push_back(name);
      return 1;
    };
  };
  for (const char* name : {"a1", "a2", "a3"}) worker.ask("a", name, question(name));
  worker.ask("b", "b1", question("b1"));
  asio::post(worker.context, [&] { word.set_value(); });
  worker.context.run();
  // a1 was begun before anybody else had asked, or not: b waits for one of a's at most.
  ASSERT_EQ(asked.size(), 4u);
  EXPECT_EQ(asked[0], "a1");
  EXPECT_TRUE(asked[1] == "b1" || asked[2] == "b1");
  EXPECT_NE(asked[3], "b1");
}

TEST(QuestionDesk, OneProjectsLineHasAnEnd) {
  Worker worker;
  std::promise<void> word, begun;
  auto heard = word.get_future().share();
  worker.ask("p", "first", [&]() -> Result<int> {
    begun.set_value();
    heard.wait();
    return 1;
  });
  asio::post(worker.context, [&] {
    begun.get_future().wait();  // it stands in no line any more
    for (size_t i = 0; i < QuestionDesk::kMostWaiting + 1; ++i) worker.ask("p", "more", [] { return Result<int>(1); });
    worker.ask("q", "other", [] { return Result<int>(1); });
    asio::post(worker.context, [&] { word.set_value(); });
  });
  worker.context.run();
  EXPECT_EQ(std::count(worker.order.begin(), worker.order.end(), "more"), std::ptrdiff_t(QuestionDesk::kMostWaiting));
  EXPECT_EQ(std::count(worker.order.begin(), worker.order.end(), "more: exhausted"), 1);
  EXPECT_EQ(std::count(worker.order.begin(), worker.order.end(), "other"), 1);
}

// Whoever has left does not keep the others of his project out.
TEST(QuestionDesk, WhoHasLeftHasNoPlaceInTheLine) {
  using namespace asio::experimental::awaitable_operators;
  Worker worker;
  std::promise<void> word, begun;
  auto heard = word.get_future().share();
  worker.ask("p", "first", [&]() -> Result<int> {
    begun.set_value();
    heard.wait();
    return 1;
  });
  asio::steady_timer leave(worker.context, asio::steady_timer::time_point::max());
  std::atomic<int> asked = 0;
  size_t left = 0;
  auto impatient = [&]() -> Task<void> {
    std::function<Result<int>()> question = [&]() -> Result<int> { return ++asked; };
    auto gone = [&]() -> Task<void> {
      boost::system::error_code ignored;
      co_await leave.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    };
    auto first = co_await (worker.desk.ask<int>("p", std::move(question)) || gone());
    left += first.index() == 1;
    if (left == QuestionDesk::kMostWaiting) {
      worker.ask("p", "patient", [] { return Result<int>(1); });
      asio::post(worker.context, [&] { word.set_value(); });
    }
  };
  asio::post(worker.context, [&] {
    begun.get_future().wait();
    for (size_t i = 0; i < QuestionDesk::kMostWaiting; ++i) asio::co_spawn(worker.context, impatient, asio::detached);
    asio::post(worker.context, [&] { leave.cancel(); });
  });
  worker.context.run();
  EXPECT_EQ(worker.order, (std::vector<std::string>{"first", "patient"}));
  EXPECT_EQ(left, QuestionDesk::kMostWaiting);
  EXPECT_EQ(asked, 0) << "nobody waited for the answer";
}

TEST(QuestionDesk, WhatWasNotBegunIsRefusedAtTheEnd) {
  Worker worker;
  std::promise<void> begun, word;
  auto heard = word.get_future().share();
  worker.ask("p", "begun", [&]() -> Result<int> {
    begun.set_value();
    heard.wait();
    return 1;
  });
  worker.ask("p", "waiting", [] { return Result<int>(1); });
  worker.context.poll();
  begun.get_future().wait();
  worker.desk.stop();
  worker.ask("p", "late", [] { return Result<int>(1); });
  worker.context.restart();
  worker.context.poll();
  // Who comes late hears it at once, whoever waits when his worker gets to it.
  EXPECT_EQ(worker.order, (std::vector<std::string>{"late: unavailable", "waiting: unavailable"}));
  word.set_value();
  worker.context.restart();
  worker.context.run();
  EXPECT_EQ(worker.order.back(), "begun");
}

}  // namespace
}  // namespace isola::sandbox
