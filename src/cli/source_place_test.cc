#include "cli/source_place.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

bool leads(const char* url, bool inside, const char* address) {
  vault::Source source{.type = vault::Source::Type::vault_kv};
  source.url = url;
  source.inside = inside;
  return may_lead_to(source, gate::place_of(*gate::Address::parse(address)).place);
}

TEST(SourcePlaceTest, InClearItLeadsToNobodyOutside) {
  EXPECT_FALSE(leads("http://kv.example", true, "8.8.8.8"));
  EXPECT_FALSE(leads("http://kv.example", false, "8.8.8.8"));
  EXPECT_FALSE(leads("http://kv.example", true, "2001:4860:4860::8888"));
  EXPECT_TRUE(leads("http://kv.example", true, "127.0.0.1"));
  EXPECT_TRUE(leads("http://kv.example", true, "10.1.2.3"));
  EXPECT_TRUE(leads("http://kv.example", true, "fd00::1"));
}

TEST(SourcePlaceTest, WithTlsItLeadsOutsideAndWhereItMayInside) {
  for (const char* url : {"https://kv.example", ""}) {  // the provider's own
    EXPECT_TRUE(leads(url, false, "8.8.8.8"));
    EXPECT_TRUE(leads(url, true, "10.1.2.3"));
    EXPECT_FALSE(leads(url, false, "10.1.2.3"));
    EXPECT_FALSE(leads(url, false, "127.0.0.1"));
    EXPECT_FALSE(leads(url, true, "169.254.169.254"));
  }
}

}  // namespace
}  // namespace isola::cli
