// A request as it is judged and changed, whichever HTTP it came by.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "gate/http1_head.h"

namespace isola::gate {

struct Request {
  std::string method;
  std::string target;     // "/path?query", or "*"
  std::string authority;  // of Host or :authority
  Fields fields;          // without Host and pseudo-headers
  bool has_body = false;
  int64_t waits_since = 0;  // for a credential that is being made; milliseconds since 1970

  std::string_view path() const { return std::string_view(target).substr(0, target.find('?')); }
  std::string_view query() const {
    size_t at = target.find('?');
    return at == target.npos ? std::string_view() : std::string_view(target).substr(at + 1);
  }
  void set_query(const std::string& query) {
    std::string bare(path());
    target = query.empty() ? std::move(bare) : std::move(bare) + "?" + query;
  }
};

}  // namespace isola::gate
