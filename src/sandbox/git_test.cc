#include <gtest/gtest.h>

#include "sandbox/service.h"

namespace isola::sandbox {
namespace {

TEST(Git, WhatMayBeCheckedOut) {
  EXPECT_TRUE(check_git({}));
  EXPECT_TRUE(check_git({.url = "https://git.example.org/team/app.git", .ref = "v1.2", .path = "/srv/app"}));
  EXPECT_TRUE(check_git({.url = "http://git.example.org:8080/app"}));
  EXPECT_TRUE(check_git({.url = "file:///opt/repo", .ref = "feature/x"}));
}

// Nothing that git would take for an option, a helper of its own or somebody's password.
TEST(Git, WhatIsRefused) {
  for (const char* url : {"--upload-pack=x", "ext::sh -c x", "ssh://host/x", "git@host:x", "/opt/repo", "https://",
                          "https://a b/c", "https://host/x\n", "fd::7", "-u"})
    EXPECT_EQ(check_git({.url = url}).error().code, Code::invalid) << url;
  auto secret = check_git({.url = "https://me:secret@host/x"});
  ASSERT_FALSE(secret);
  EXPECT_EQ(secret.error().message.find("secret"), std::string::npos);
  for (const char* ref : {"-x", "--orphan", "a b", "a\tb"})
    EXPECT_EQ(check_git({.url = "https://host/x", .ref = ref}).error().code, Code::invalid) << ref;
  EXPECT_EQ(check_git({.ref = "main"}).error().code, Code::invalid) << "a ref of nothing";
  EXPECT_EQ(check_git({.url = "https://host/x", .path = std::string("a\0b", 3)}).error().code, Code::invalid);
}

}  // namespace
}  // namespace isola::sandbox
