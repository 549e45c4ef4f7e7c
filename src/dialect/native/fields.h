// The fields of a JSON request, read by name and type. What is wrong is said once, with the place; what nobody asked
// for is refused by its name.
//
//   ISOLA_TRY(Fields fields, Fields::parse(body));
//   request.name = fields.text("name");
//   request.timeout = fields.seconds("timeout");
//   ISOLA_CHECK(fields.done());            // the first thing that was wrong, or a field that nobody read
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "store/records.h"
#include "vault/seal.h"

namespace isola::native {

class Fields {
 public:
  static Result<Fields> parse(std::string_view body);  // an empty body is an empty object
  Fields(Fields&&) noexcept;
  Fields& operator=(Fields&&) noexcept;
  ~Fields();

  bool has(const char* name) const;
  std::string text(const char* name, std::string otherwise = {});
  std::optional<std::string> maybe_text(const char* name);
  std::optional<double> number(const char* name, double least = 0, double most = 1e15);
  std::optional<uint64_t> count(const char* name, uint64_t most = UINT64_MAX);
  bool flag(const char* name, bool otherwise = false);
  std::optional<store::Millis> seconds(const char* name);  // a number of seconds, or "10m"
  std::optional<uint64_t> size(const char* name);          // a number of bytes, or "512M"
  std::vector<std::string> texts(const char* name);
  store::Labels labels(const char* name);    // an object of strings
  store::Labels contents(const char* name);  // likewise; bytes that are no text as {"base64": …}
  std::optional<Fields> object(const char* name);
  std::vector<Fields> objects(const char* name);  // a list of them; adopt() each
  std::string json_text(const char* name);        // an object, as it is; empty: there is none
  // A text, or bytes as base64 under another name; empty: there is neither.
  vault::Secret secret(const char* name, const char* as_base64);
  // Overwrites every text in it: afterwards only done() makes sense.
  void wipe();

  // Remembered for done(): a value that its reader finds senseless.
  void wrong(const char* name, const std::string& why);
  Result<void> done();
  void adopt(Fields& inner, const char* name);  // inner's complaints become ours

 private:
  Fields();
  const nlohmann::json* get(const char* name);
  std::unique_ptr<nlohmann::json> value_;
  std::vector<std::string> used_;
  std::string prefix_;
  std::optional<Error> error_;
};

}  // namespace isola::native
