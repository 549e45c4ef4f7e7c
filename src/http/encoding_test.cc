#include "http/encoding.h"

#include <gtest/gtest.h>

namespace isola::http {

TEST(Encoding, WhoAcceptsGzip) {
  for (std::string_view yes : {"gzip", "GZIP", "br, gzip", "deflate, gzip;q=0.5, br", "gzip;q=1.0", "gzip ; q=0.001"})
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  for (std::string_view no :
       {"", "identity", "br", "gzip;q=0", "gzip; q=0.0", "gzip;Q=0.000", "x-gzip-like", "gzipped"})
    EXPECT_FALSE(accepts_gzip(no)) << no;
}

TEST(Encoding, WhatPacksWell) {
  for (std::string_view yes :
       {"text/plain", "text/event-stream", "application/json; charset=utf-8", "application/x-ndjson"})
    EXPECT_TRUE(compressible(yes)) << yes;
  for (std::string_view no :
       {"", "application/octet-stream", "application/x-tar", "application/connect+json", "image/png"})
    EXPECT_FALSE(compressible(no)) << no;
}

}  // namespace isola::http
