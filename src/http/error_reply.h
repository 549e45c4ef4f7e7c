// Errors have one shape on the wire:
//
//   HTTP/1.1 404 Not Found
//   {"error":{"code":"not_found","message":"there is no sandbox i…","request_id":"5f0c…"}}
//
// A dialect whose clients expect another shape gives its group of routes a Dresser.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::http {

class Exchange;

struct ErrorReply {
  int status = 500;
  std::string code;  // for programs: to_string(Code), or http's own such as method_not_allowed
  std::string message;
  std::optional<int> retry_after_s;
};

using Dresser = std::function<void(Exchange&, const ErrorReply&)>;

int status_of(Code code);
ErrorReply error_reply(const Error& error);
// The body of the shape above.
std::string error_body(const ErrorReply& reply, std::string_view request_id);
// What a group without a Dresser does.
void plain_dress(Exchange& exchange, const ErrorReply& reply);

std::string_view reason_of(int status);  // "Not Found"
void append_json_string(std::string& out,
                        std::string_view text);  // with its quotes; bytes that are not UTF-8 become U+FFFD

}  // namespace isola::http
