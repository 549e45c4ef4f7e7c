#include "dialect/e2b/call.h"

#include "dialect/e2b/envd.h"
#include "dialect/shared/base64.h"

namespace isola::e2b {

using nlohmann::json;

Task<Result<const Accounts*>> Inside::accounts() {
  if (!known) {
    ISOLA_CO_TRY(known, co_await Accounts::read(*link));
  }
  co_return &*known;
}

Task<Result<std::string>> Call::home() {
  // The homes of the two that every template has: almost every call is theirs.
  if (user == kDefaultUser) co_return std::string("/home/user");
  if (user == "root") co_return std::string("/root");
  ISOLA_CO_TRY(const Accounts* names, co_await accounts());
  co_return names->home(user).value_or("/");
}

Task<Result<std::string>> Call::absolute(std::string_view text) {
  if (text.starts_with('/')) co_return expand(text, "/");
  ISOLA_CO_TRY(std::string from, co_await home());
  co_return expand(text, from);
}

Task<Result<std::string>> Call::path(const char* field) {
  std::string text = text_of(body, field);
  co_return co_await absolute(text);
}

std::optional<std::string> basic_user(std::string_view header) {
  if (!header.starts_with("Basic ")) return std::nullopt;
  auto text = dialect::from_base64(header.substr(6));
  if (!text) return std::nullopt;
  return text->substr(0, text->find(':'));
}

Task<Result<Call>> enter(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, std::string name) {
  // Where nobody is named it is whoever the template ended with. Of one that an image names by number, or wrongly, the
  // guest says what it thinks.
  const bool of_template = name.empty();
  if (of_template) name = box->record().user;
  if (name.empty()) name = kDefaultUser;
  ISOLA_CO_CHECK(co_await wake(service, box));
  // The link would bring back what sleeps without its memory, too.
  if (store::is_asleep(box->state()) && !may_wake(service, box))
    co_return fail(Code::not_found, "sandbox " + box->id() + " is paused");
  ISOLA_CO_TRY(auto link, co_await service.link(box));
  Inside inside;
  inside.link = std::move(link);
  Call call(std::move(inside), ex, service, box, std::move(name));
  if (!of_template && call.user != kDefaultUser && call.user != "root") {
    ISOLA_CO_TRY(const Accounts* names, co_await call.accounts());
    if (!names->home(call.user)) co_return fail(Code::denied, "invalid username: '" + call.user + "'");
  }
  co_return std::move(call);
}

bool flag_of(const json& object, const char* name) {
  auto at = object.find(name);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

}  // namespace isola::e2b
