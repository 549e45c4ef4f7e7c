#include "http/error_reply.h"

#include <algorithm>

#include "http/exchange.h"

namespace isola::http {

int status_of(Code code) {
  switch (code) {
    case Code::invalid: return 400;
    case Code::not_found: return 404;
    case Code::exists: return 409;
    case Code::denied: return 403;
    case Code::unsupported: return 501;
    case Code::exhausted: return 429;
    case Code::unavailable: return 503;
    case Code::timeout: return 504;
    case Code::corrupt:
    case Code::internal: break;
  }
  return 500;
}

ErrorReply error_reply(const Error& error) {
  std::string code(to_string(error.code));
  std::replace(code.begin(), code.end(), '-', '_');  // as names are written in JSON
  return {.status = status_of(error.code), .code = std::move(code), .message = error.message};
}

namespace {

// The length of the UTF-8 sequence at the front, 0 if there is none.
size_t utf8_length(std::string_view s) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  auto tail = [&](size_t i) { return i < s.size() && (byte(i) & 0xc0) == 0x80; };
  unsigned char c = byte(0);
  if (c < 0x80) return 1;
  if (c >= 0xc2 && c <= 0xdf) return tail(1) ? 2 : 0;
  if (c >= 0xe0 && c <= 0xef) {
    if (!tail(1) || !tail(2)) return 0;
    if ((c == 0xe0 && byte(1) < 0xa0) || (c == 0xed && byte(1) > 0x9f)) return 0;
    return 3;
  }
  if (c >= 0xf0 && c <= 0xf4) {
    if (!tail(1) || !tail(2) || !tail(3)) return 0;
    if ((c == 0xf0 && byte(1) < 0x90) || (c == 0xf4 && byte(1) > 0x8f)) return 0;
    return 4;
  }
  return 0;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  static constexpr char kDigits[] = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    unsigned char c = static_cast<unsigned char>(text[0]);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
      text.remove_prefix(1);
    } else if (c == '\n') {
      out += "\\n";
      text.remove_prefix(1);
    } else if (c < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += kDigits[c >> 4];
      out += kDigits[c & 15];
      text.remove_prefix(1);
    } else if (size_t n = utf8_length(text)) {
      out += text.substr(0, n);
      text.remove_prefix(n);
    } else {
      out += "\xef\xbf\xbd";
      text.remove_prefix(1);
    }
  }
  out += '"';
}

std::string error_body(const ErrorReply& reply, std::string_view request_id) {
  std::string out = "{\"error\":{\"code\":";
  append_json_string(out, reply.code);
  out += ",\"message\":";
  append_json_string(out, reply.message);
  out += ",\"request_id\":";
  append_json_string(out, request_id);
  out += "}}\n";
  return out;
}

void plain_dress(Exchange& exchange, const ErrorReply& reply) {
  exchange.reply(reply.status, error_body(reply, exchange.request_id()));
}

std::string_view reason_of(int status) {
  switch (status) {
    case 100: return "Continue";
    case 101: return "Switching Protocols";
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 301: return "Moved Permanently";
    case 302: return "Found";
    case 303: return "See Other";
    case 304: return "Not Modified";
    case 307: return "Temporary Redirect";
    case 308: return "Permanent Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 402: return "Payment Required";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 406: return "Not Acceptable";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 410: return "Gone";
    case 411: return "Length Required";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 416: return "Range Not Satisfiable";
    case 417: return "Expectation Failed";
    case 421: return "Misdirected Request";
    case 422: return "Unprocessable Content";
    case 425: return "Too Early";
    case 426: return "Upgrade Required";
    case 428: return "Precondition Required";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    case 507: return "Insufficient Storage";
    default: return status >= 500 ? "Server Error" : status >= 400 ? "Client Error" : status >= 300 ? "Redirect" : "OK";
  }
}

}  // namespace isola::http
