#include "vault/binding.h"

#include <gtest/gtest.h>

namespace isola::vault {
namespace {

Binding example() {
  return {.id = "b123",
          .secret = "github",
          .names = {"api.github.example", "*.uploads.example"},
          .ports = "443,8000-8100",
          .methods = {"GET", "POST"},
          .path_prefix = "/repos/",
          .place = Place::header,
          .field = "X-Token",
          .format = "token {}",
          .placeholder = "placeholder-123",
          .unguarded = true,
          .expires = 1'900'000'000'000,
          .actor = "somebody",
          .unsearched = true};
}

// Whoever says nothing about it has it refused everywhere.
TEST(Binding, APlaceholderIsGuardedUnlessSomebodySaysOtherwise) {
  auto read = [](const std::string& more) {
    return parse_binding(R"({"secret":"s","names":["a.example"])" + more + "}").value();
  };
  EXPECT_FALSE(read(R"(,"placeholder":"placeholder-123")").unguarded);
  EXPECT_FALSE(read(R"(,"placeholder":"placeholder-123","placeholder_everywhere":true)").unguarded);
  EXPECT_TRUE(read(R"(,"placeholder":"placeholder-123","placeholder_everywhere":false)").unguarded);
  EXPECT_FALSE(read(R"(,"placeholder_everywhere":false)").unguarded) << "there is none";
}

TEST(Binding, ComesBackAsItWas) {
  for (const Binding& one : {example(), Binding{.secret = "s", .names = {"a.example"}}}) {
    auto read = parse_binding(to_json(one));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, one);
  }
}

TEST(Binding, SaysWhereTheValueGoes) {
  for (const char* good : {R"({"secret":"s","names":["a.example"]})",
                           R"({"secret":"s","names":["a.example"],"place":"basic","field":"u"})",
                           R"({"secret":"s","names":["a.example"],"place":"query","field":"api_key"})",
                           R"({"secret":"s","names":["a.example"],"place":"sigv4","field":"eu-central-1/s3"})",
                           R"({"secret":"s","names":["a.example"],"place":"header","field":"Authorization"})"}) {
    auto read = parse_binding(good);
    EXPECT_TRUE(read) << good << ": " << read.error().message;
  }
}

TEST(Binding, RefusesWhatWouldGoElsewhereThanItSays) {
  for (const char* odd :
       {R"({"secret":"s"})",                                                        // to nobody
        R"({"secret":"s","names":[]})",                                             //
        R"({"secret":"s","names":["*"]})",                                          // to anybody
        R"({"secret":"s","names":["*.example"]})",                                  // to a whole domain of the root
        R"({"secret":"s","names":["A.example"]})",                                  // another spelling
        R"({"secret":"s","names":["a.example."]})",                                 //
        R"({"secret":"s","names":["a..example"]})",                                 //
        R"({"secret":"s","names":["a.example:443"]})",                              //
        R"({"secret":"s","names":["a b.example"]})",                                //
        R"({"secret":"","names":["a.example"]})",                                   //
        R"({"secret":"../x","names":["a.example"]})",                               //
        R"({"secret":"s","names":["a.example"],"ports":"0"})",                      //
        R"({"secret":"s","names":["a.example"],"ports":"443,"})",                   //
        R"({"secret":"s","names":["a.example"],"ports":"90-80"})",                  //
        R"({"secret":"s","names":["a.example"],"ports":"70000"})",                  //
        R"({"secret":"s","names":["a.example"],"methods":["get"]})",                //
        R"({"secret":"s","names":["a.example"],"methods":["CONNECT"]})",            //
        R"({"secret":"s","names":["a.example"],"path_prefix":"repos"})",            //
        R"({"secret":"s","names":["a.example"],"path_prefix":"/a/../b"})",          //
        R"({"secret":"s","names":["a.example"],"path_prefix":"/a%2fb"})",           //
        R"({"secret":"s","names":["a.example"],"path_prefix":"//a"})",              //
        R"({"secret":"s","names":["a.example"],"place":"cookie"})",                 //
        R"({"secret":"s","names":["a.example"],"place":"bearer","field":"x"})",     //
        R"({"secret":"s","names":["a.example"],"place":"basic"})",                  //
        R"({"secret":"s","names":["a.example"],"place":"basic","field":"a:b"})",    //
        R"({"secret":"s","names":["a.example"],"place":"header"})",                 //
        R"({"secret":"s","names":["a.example"],"place":"header","field":"X Y"})",   //
        R"({"secret":"s","names":["a.example"],"place":"header","field":"Host"})",  // smuggling
        R"({"secret":"s","names":["a.example"],"place":"header","field":"Transfer-Encoding"})",
        R"({"secret":"s","names":["a.example"],"place":"header","field":"X","format":"no hole"})",
        R"({"secret":"s","names":["a.example"],"place":"header","field":"X","format":"{} {}"})",
        R"({"secret":"s","names":["a.example"],"place":"header","field":"X","format":"{}\r\nY: z"})",  // splitting
        R"({"secret":"s","names":["a.example"],"place":"bearer","format":"{}"})",                      //
        R"({"secret":"s","names":["a.example"],"place":"query","field":"a&b"})",                       //
        R"({"secret":"s","names":["a.example"],"place":"sigv4","field":"region"})",                    //
        R"({"secret":"s","names":["a.example"],"placeholder_everywhere":true})",                       //
        R"({"secret":"s","names":["a.example"],"placeholder":"short"})",                               //
        R"({"secret":"s","names":["a.example"],"expires":-1})",                                        //
        R"({"secret":"s","names":["a.example"],"expires":18446744073709551615})",                      //
        R"({"secret":"s","names":["a.example"],"sealed":"c2VhbGVk"})",                                 // ours
        R"({"secret":"s","names":["a.example"],"value":"hunter2"})",                                   // unknown
        R"([])",
        "",
        "{"}) {
    EXPECT_FALSE(parse_binding(odd)) << odd;
  }
}

}  // namespace
}  // namespace isola::vault
