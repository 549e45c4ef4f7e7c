#include "http/multipart.h"

#include <gtest/gtest.h>

namespace isola::http {
namespace {

struct Parts {
  std::string text;
  MultipartParser parser;
  explicit Parts(std::string_view boundary = "B", size_t max_parts = 1000)
      : parser(boundary,
               {.part =
                    [this](const Part& part) {
                      text += "[" + part.name + "|" + (part.has_filename ? part.filename : "-") + "|" + part.type + "]";
                      return Result<void>();
                    },
                .data =
                    [this](std::string_view piece) {
                      text += piece;
                      return Result<void>();
                    },
                .end =
                    [this] {
                      text += ";";
                      return Result<void>();
                    }},
               max_parts) {}
};

const std::string kForm =
    "preamble\r\n--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\none\r\n--B\r\n"
    "Content-Disposition: form-data; name=\"f\"; filename=\"x \\\"y\\\".txt\"\r\nContent-Type: text/plain\r\n\r\n"
    "two\r\n--\r\n--Bx\r\n--B \r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--B--\r\nepilogue";

TEST(Multipart, ReadsPartsTornAnywhere) {
  const std::string wanted = "[a|-|]one;[f|x \"y\".txt|text/plain]two\r\n--";
  for (size_t size : {1ul, 2ul, 3ul, 7ul, 50ul, kForm.size()}) {
    Parts seen;
    std::string form = kForm;
    form.replace(form.find("\r\n--Bx"), 6, "\r\n-Bx-");  // what only looks like a boundary
    for (size_t i = 0; i < form.size(); i += size)
      ASSERT_TRUE(seen.parser.feed(std::string_view(form).substr(i, size)));
    EXPECT_TRUE(seen.parser.finish());
    EXPECT_EQ(seen.text, wanted + "\r\n-Bx-;[empty|-|];") << size;
  }
}

TEST(Multipart, RefusesWhatIsMalformed) {
  std::string head = "--B\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n";
  for (const std::string& bad : {
           kForm,  // "--Bx" is no boundary's line
           std::string("--B\r\n\r\nno head\r\n--B--"),
           std::string("--B\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n--B--"),
           std::string("--B\r\nContent-Disposition: form-data\r\n\r\n\r\n--B--"),
           std::string("--B\r\nContent-Disposition: form-data; name=a; name=b\r\n\r\n\r\n--B--"),
           std::string("--B\r\nContent-Disposition: form-data; name=\"a\r\n\r\n\r\n--B--"),
           std::string("--B\r\nContent Disposition: form-data; name=a\r\n\r\n\r\n--B--"),
           head + "no end",
           head + "no last end\r\n--B\r\n",
           std::string(),
           std::string(10'000, 'x'),
           "--B\r\nX: " + std::string(10'000, 'x'),
       }) {
    Parts seen;
    auto fed = seen.parser.feed(bad);
    EXPECT_FALSE(fed && seen.parser.finish()) << bad.substr(0, 100);
  }
  Parts few("B", 2);
  EXPECT_TRUE(few.parser.feed(head + "\r\n" + head + "\r\n"));
  EXPECT_FALSE(few.parser.feed(head));
}

TEST(Multipart, HoldsLittle) {
  Parts seen;
  ASSERT_TRUE(seen.parser.feed("--B\r\nContent-Disposition: form-data; name=a\r\n\r\n"));
  std::string piece(1 << 20, '\r');
  for (int i = 0; i < 8; i++) {
    ASSERT_TRUE(seen.parser.feed(piece));
    EXPECT_LE(seen.parser.held(), 64u);
  }
}

TEST(Multipart, FindsTheBoundary) {
  EXPECT_EQ(*multipart_boundary("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(*multipart_boundary("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\""), "a b");
  EXPECT_FALSE(multipart_boundary("multipart/mixed; boundary=abc"));
  EXPECT_FALSE(multipart_boundary("multipart/form-data"));
  EXPECT_FALSE(multipart_boundary("multipart/form-data; boundary=a; boundary=b"));
  EXPECT_FALSE(multipart_boundary("multipart/form-data; boundary=" + std::string(71, 'a')));
}

}  // namespace
}  // namespace isola::http
