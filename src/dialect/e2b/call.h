// One call of the data plane: whose sandbox, as which user, with what.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dialect/e2b/accounts.h"
#include "dialect/e2b/connect.h"
#include "dialect/shared/text.h"
#include "http/exchange.h"
#include "sandbox/service.h"

namespace isola::e2b {

// The way into a sandbox, and the names that it has for its ids: read once, and only where they are needed.
struct Inside {
  std::shared_ptr<sandbox::GuestLink> link;
  std::optional<Accounts> known;

  Task<Result<const Accounts*>> accounts();
};

struct Call : Inside {
  Call(Inside inside, http::Exchange& e, sandbox::Service& s, sandbox::BoxPtr b, std::string name)
      : Inside(std::move(inside)), ex(e), service(s), box(std::move(b)), use(box->use()), user(std::move(name)) {}

  http::Exchange& ex;
  sandbox::Service& service;
  sandbox::BoxPtr box;
  sandbox::Box::Use use;
  std::string user;  // who acts; never empty
  nlohmann::json body = nlohmann::json::object();

  // Whoever holds the sandbox's token; nobody says more.
  sandbox::Caller caller() const { return sandbox::Caller(sandbox::kOwnToken, box->record().actor); }
  Task<Result<std::string>> home();
  // The body's field as an absolute path.
  Task<Result<std::string>> path(const char* field);
  Task<Result<std::string>> absolute(std::string_view text);
};

using Unary = std::function<Task<Result<nlohmann::json>>(Call&)>;
using Streaming = std::function<Task<Result<void>>(Call&, RpcStream&)>;
// Takes the next messages of a request that is a stream itself; the answer is one empty message.
using Listening = std::function<Task<Result<void>>(Call&, std::vector<nlohmann::json>)>;

// The call as the user that `name` says (empty: the template's own). denied: there is no such user.
Task<Result<Call>> enter(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, std::string name);
// The user's name in "Basic …"; nothing: there is none.
std::optional<std::string> basic_user(std::string_view header);

using dialect::text_of;
bool flag_of(const nlohmann::json& object, const char* name);

}  // namespace isola::e2b
