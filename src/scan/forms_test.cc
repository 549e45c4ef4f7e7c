#include "scan/forms.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace isola::scan {
namespace {

bool has(const std::vector<Spelling>& all, Form form, std::string_view text) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Spelling& one) { return one.form == form && one.bytes == text; });
}

TEST(Forms, OfAValueWithEverythingInIt) {
  auto all = spellings("a\"b/c+d<e>&'\\ \n");
  EXPECT_EQ(all.front().form, Form::raw);
  EXPECT_TRUE(has(all, Form::hex, "6122622f632b643c653e26275c200a"));
  EXPECT_TRUE(has(all, Form::url, "a%22b%2fc%2bd%3ce%3e%26%27%5c%20%0a"));  // RFC 3986
  EXPECT_TRUE(has(all, Form::url, "a%22b%2fc%2bd%3ce%3e%26'%5c%20%0a"));    // encodeURIComponent
  EXPECT_TRUE(has(all, Form::url, "a%22b/c%2bd%3ce%3e%26%27%5c%20%0a"));    // quote() of Python
  EXPECT_TRUE(has(all, Form::url, "a%22b%2fc%2bd%3ce%3e%26%27%5c+%0a"));    // a form
  EXPECT_TRUE(has(all, Form::url, "%61%22%62%2f%63%2b%64%3c%65%3e%26%27%5c%20%0a"));
  EXPECT_TRUE(has(all, Form::json, R"(a\"b/c+d<e>&'\\ \n)"));
  EXPECT_TRUE(has(all, Form::json, R"(a\"b\/c+d<e>&'\\ \n)"));
  EXPECT_TRUE(has(all, Form::json, R"(a\"b/c+d\u003ce\u003e\u0026'\\ \n)"));  // encoding/json of Go
  EXPECT_TRUE(has(all, Form::json, R"(a\\\"b/c+d<e>&'\\\\ \\n)"));            // JSON in JSON
  EXPECT_TRUE(has(all, Form::json,
                  R"(\u0061\u0022\u0062\u002f\u0063\u002b\u0064\u003c\u0065\u003e\u0026\u0027\u005c\u0020\u000a)"));
  EXPECT_TRUE(has(all, Form::html, "a&quot;b/c+d&lt;e&gt;&amp;&#x27;\\ \n"));  // html.escape() of Python
  EXPECT_TRUE(has(all, Form::html, "a&#34;b/c+d&lt;e&gt;&amp;&#39;\\ \n"));    // html/template of Go
  EXPECT_TRUE(has(all, Form::html, "a\"b/c+d&lt;e&gt;&amp;'\\ \n"));
  for (const auto& one : all) EXPECT_EQ(one.bytes.size(), one.loose.size());
}

// Known answers: printf 'x%.0s' … | base64, with the value at each of the three places of a group.
TEST(Forms, Base64AtAllAlignments) {
  auto all = spellings("hunter2?>");
  EXPECT_TRUE(has(all, Form::base64, "aHVudGVyMj8+"));  // "hunter2?>"
  EXPECT_TRUE(has(all, Form::base64, "h1bnRlcjI/P"));   // "xhunter2?>" is eGh1bnRlcjI/Pg==
  EXPECT_TRUE(has(all, Form::base64, "odW50ZXIyPz"));   // "xxhunter2?>" is eHhodW50ZXIyPz4=
  EXPECT_TRUE(has(all, Form::base64url, "aHVudGVyMj8-"));
  EXPECT_TRUE(has(all, Form::base64url, "h1bnRlcjI_P"));
  // The third has neither + nor /: it is the same in both alphabets, and there once.
  EXPECT_FALSE(has(all, Form::base64url, "odW50ZXIyPz"));
}

TEST(Forms, BeyondAscii) {
  auto all = spellings("pässwörd");
  EXPECT_TRUE(has(all, Form::json, R"(p\u00e4ssw\u00f6rd)"));
  EXPECT_TRUE(has(all, Form::url, "p%c3%a4ssw%c3%b6rd"));
  EXPECT_TRUE(has(all, Form::html, "&#112;&#228;&#115;&#115;&#119;&#246;&#114;&#100;"));
  EXPECT_TRUE(has(spellings("\xf0\x9f\x94\x91key12"), Form::json, R"(\ud83d\udd11key12)"));
  EXPECT_TRUE(has(spellings("\xff\xfe\x01\x02zz"), Form::json, R"(\u00ff\u00fe\u0001\u0002\u007a\u007a)"));
}

}  // namespace
}  // namespace isola::scan
