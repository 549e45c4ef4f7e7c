#include "gate/inspector.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "gate/name.h"
#include "gate/request_path.h"
#include "gate/sigv4.h"

namespace isola::gate {

namespace {

constexpr const char* kAwsParameters[] = {"X-Amz-Credential", "X-Amz-Security-Token", "X-Amz-Signature"};

// A method or a path that only some servers look at: then the one that was judged is not the one that counts.
constexpr const char* kOverrides[] = {"X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override",
                                      "X-Original-URL",         "X-Rewrite-URL", "X-Forwarded-Uri"};

// The same as a parameter of the query. (In a form's body, which is not looked at, servers take it of a POST only.)
constexpr const char* kMethodParameter = "_method";

// Of another file, which the request's path says nothing about.
constexpr const char* kAwsSources[] = {"x-amz-copy-source", "x-amz-rename-source"};

// As servers that make variables of fields read them: X_Api_Key is X-Api-Key.
bool begins_alike(std::string_view name, std::string_view with) {
  auto plain = [](char c) { return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return name.size() >= with.size() &&
         std::equal(with.begin(), with.end(), name.begin(), [&](char a, char b) { return plain(a) == plain(b); });
}
bool alike(std::string_view one, std::string_view other) {
  return one.size() == other.size() && begins_alike(one, other);
}

const char* header_of(const Bound& bound) {
  switch (bound.binding.place) {
    case vault::Place::bearer:
    case vault::Place::basic:
    case vault::Place::sigv4: return "Authorization";
    case vault::Place::header: return bound.binding.field.c_str();
    case vault::Place::query: break;
  }
  return nullptr;
}

// The sandbox's own copies of what stands at this place.
void strip(Request& request, const Bound& bound) {
  if (bound.binding.place == vault::Place::sigv4) return strip_signature(request);
  if (const char* name = header_of(bound)) {
    std::erase_if(request.fields, [&](const auto& field) { return alike(field.name, name); });
    return;
  }
  bool found = false;
  auto query = without_parameter(request.query(), bound.binding.field, &found);
  if (found) request.set_query(query);
}

bool contains(std::string_view text, std::string_view word) { return text.find(word) != text.npos; }

// A text of a head as it stands, unescaped, and as a password behind "Basic": worked out once, and not for each of many
// placeholders.
struct Readings {
  explicit Readings(std::string_view as_it_is) : text(as_it_is) {
    if (contains(text, "%")) unescaped = percent_decoded(text);
    if (text.size() < 6 || !same_name(text.substr(0, 6), "Basic ")) return;
    if (auto decoded = vault::from_base64(text.substr(6))) password = *decoded;
  }
  bool say(const std::string& word) const {
    return contains(text, word) || contains(unescaped, word) || contains(password, word);
  }
  std::string_view text;
  std::string unescaped, password;
};

struct HeadReadings {
  explicit HeadReadings(const Request& request) : path(request.path()), query(request.query()) {
    for (const auto& field : request.fields) values.emplace_back(field.value);
  }
  std::vector<Readings> values;  // of the fields, one by one
  Readings path, query;
};

// Somewhere in the head; `own`: its own place does not count.
bool says_placeholder(const Request& request, const HeadReadings& head, const Bound& bound, bool own) {
  const auto& placeholder = bound.binding.placeholder;
  const char* header = own ? header_of(bound) : nullptr;
  for (size_t i = 0; i < request.fields.size(); ++i) {
    const auto& name = request.fields[i].name;
    if (header && same_name(name, header)) continue;
    if (own && bound.binding.place == vault::Place::sigv4 && same_name(name, "X-Amz-Security-Token")) continue;
    if (head.values[i].say(placeholder) || contains(name, placeholder)) return true;
  }
  if (head.path.say(placeholder)) return true;
  if (!head.query.say(placeholder)) return false;
  std::string query(request.query());
  if (own && bound.binding.place == vault::Place::query) query = without_parameter(query, bound.binding.field);
  if (own && bound.binding.place == vault::Place::sigv4)
    for (const char* name : kAwsParameters) query = without_parameter(query, name);
  return Readings(query).say(placeholder);
}

// Bodies, their messages, and those of websockets. Who says nothing may get messages packed as his own are, so it is
// said; but to servers of these protocols only.
void ask_for_plain(Request& request) {
  for (const char* name :
       {"Accept-Encoding", "Grpc-Accept-Encoding", "Connect-Accept-Encoding", "Sec-WebSocket-Extensions"})
    remove_field(request.fields, name);
  request.fields.push_back({"Accept-Encoding", "identity"});
  const auto* type = find_field(request.fields, "Content-Type");
  if (!type) return;
  if (begins_alike(*type, "application/grpc")) request.fields.push_back({"Grpc-Accept-Encoding", "identity"});
  if (begins_alike(*type, "application/connect")) request.fields.push_back({"Connect-Accept-Encoding", "identity"});
}

std::string filled(const std::string& format, std::string_view value) {
  std::string out = format.empty() ? "{}" : format;
  out.replace(out.find("{}"), 2, value);
  return out;
}

}  // namespace

std::string refusal_body(const Decision& decision) {
  return nlohmann::json{{"error", decision.text}, {"reason", to_string(decision.reason)}, {"by", "isola gate"}}.dump(
             -1, ' ', true, nlohmann::json::error_handler_t::replace) +
         "\n";
}

void Inspector::tell(Event::Kind kind, Reason reason, const Request* request, const Bound* bound, std::string rule) {
  Event event{.kind = kind,
              .name = name_,
              .address = address_.text(),
              .port = port_,
              .reason = reason,
              .rule = std::move(rule),
              .host_verified = !cleartext_};
  if (request) event.method = request->method, event.path = std::string(request->path());
  if (bound) event.binding = bound->binding.id, event.secret = bound->binding.secret;
  premises_.record(std::move(event));
}

Decision Inspector::refuse(int status, Reason reason, std::string text, const Request* request, const Bound* bound,
                           std::string rule) {
  tell(Event::Kind::denied, reason, request, bound, rule.empty() ? text : std::move(rule));
  return {.status = status, .reason = reason, .text = std::move(text)};
}

bool Inspector::is_for_us(std::string_view authority) const {
  if (size_t colon = authority.rfind(':'); colon != authority.npos) {
    auto digits = authority.substr(colon + 1);
    uint16_t port = 0;
    auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (bad != std::errc() || end != digits.data() + digits.size() || port != port_) return false;
    authority = authority.substr(0, colon);
  }
  auto normal = normal_name(authority);
  return normal && *normal == name_;
}

Decision Inspector::judge(Request& request) {
  if (!is_method(request.method))
    return refuse(400, Reason::bad_request, "the method is not in capital letters", &request);
  if (request.method == "CONNECT" || request.method == "TRACE")
    return refuse(403, Reason::request, request.method + " is not passed on", &request);
  if (!is_for_us(request.authority))
    return refuse(421, Reason::authority,
                  "this connection is for " + name_ + " and not for " + request.authority.substr(0, kMaxName), &request,
                  nullptr, request.authority);
  // In the one spelling that was judged: what else there may be the server would read for itself.
  request.authority = name_ + (request.authority.rfind(':') == std::string::npos ? "" : ":" + std::to_string(port_));
  const bool whole = request.target == "*" && request.method == "OPTIONS";
  auto path = whole ? Result<std::string>("/") : normal_path(request.path());
  if (!path) return refuse(400, Reason::bad_request, "a path that is not clear: " + path.error().message, &request);
  auto egress = premises_.egress();
  if (auto verdict = egress->request(name_, address_, port_, request.method, *path); !verdict.allowed())
    return refuse(403, verdict.reason, "no rule lets this method and path through", &request, nullptr, verdict.rule);
  if (is_narrow(*egress)) {
    for (const auto& field : request.fields)
      if (std::ranges::any_of(kOverrides, [&](const char* name) { return alike(field.name, name); }))
        return refuse(403, Reason::request, field.name + " is not passed on where there are rules", &request);
    bool overrides = false;
    (void)without_parameter(request.query(), kMethodParameter, &overrides);
    if (overrides)
      return refuse(403, Reason::request, std::string(kMethodParameter) + " is not passed on where there are rules",
                    &request);
  }
  Decision decision = judge_bindings(request, *path);
  if (decision.status || decision.waits) return decision;
  auto searches = premises_.searches();
  if (!searches || !searches->automaton()) return decision;
  // What comes back must be readable, or a value in it could not be found: also where none was sent with this request.
  decision.searched = true;
  ask_for_plain(request);
  return decision;
}

// Whether method and path decide about something here: what is let through, or which credential is set.
bool Inspector::is_narrow(const Egress& egress) const {
  if (egress.inspects(name_, port_)) return true;
  auto bindings = premises_.bindings();
  return bindings && std::ranges::any_of(bindings->all(), [&](const auto& bound) {
           return bound->is_for(name_, port_) &&
                  !(bound->binding.methods.empty() && bound->binding.path_prefix.empty());
         });
}

Decision Inspector::judge_bindings(Request& request, const std::string& path) {
  Decision decision;
  auto bindings = premises_.bindings();
  if (!bindings || bindings->empty()) return decision;
  const int64_t now = milliseconds_now();
  const Bound *over = nullptr, *closed = nullptr, *stale = nullptr;
  for (const auto& bound : bindings->all()) {
    if (!bound->is_for(name_, port_) || !bound->fits(request.method, path)) continue;
    // One value for each place: the first that fits.
    bool taken = std::any_of(decision.bound.begin(), decision.bound.end(), [&](const auto& other) {
      const char *ours = header_of(*bound), *theirs = header_of(*other);
      if (!ours || !theirs) return !ours && !theirs && other->binding.field == bound->binding.field;
      return same_name(ours, theirs);
    });
    if (taken) continue;
    if (bound->is_over(now)) {
      over = bound.get();
      continue;
    }
    if (bound->value.empty() || bound->unsendable) closed = bound.get();
    if (bound->is_stale(now)) stale = bound.get();
    if (bound->is_due(now) && !cleartext_) premises_.want_values();
    decision.bound.push_back(bound);
  }
  std::optional<HeadReadings> head;
  for (const auto& bound : bindings->all()) {
    if (bound->binding.placeholder.empty()) continue;
    if (!head) head.emplace(request);
    bool own = std::find(decision.bound.begin(), decision.bound.end(), bound) != decision.bound.end();
    if (says_placeholder(request, *head, *bound, own))
      return refuse(403, Reason::placeholder, "a placeholder for a credential, where it does not belong", &request,
                    bound.get());
  }
  if (decision.bound.empty() && over)
    return refuse(403, Reason::binding_expired, "the time of this credential is over", &request, over);
  if (!decision.bound.empty() && cleartext_)
    return refuse(403, Reason::cleartext, "a credential is for TLS alone", &request, decision.bound[0].get());
  if (closed)
    return refuse(403, Reason::locked,
                  closed->unsendable ? "the credential cannot stand in a header" : "the credential cannot be opened",
                  &request, closed, closed->trouble);
  if (stale) {
    if (request.waits_since == 0) request.waits_since = now;
    if (now - request.waits_since >= kLongestWait)
      return refuse(503, Reason::locked, "no new credential was made in time", &request, stale);
    decision.waits = true;
    return decision;
  }
  for (const auto& bound : bindings->all())
    if (bound->is_for(name_, port_)) strip(request, *bound);
  if (decision.bound.empty()) return decision;
  for (const auto& bound : decision.bound) {
    if (bound->binding.place != vault::Place::sigv4) continue;
    if (!bound->binding.path_prefix.empty())
      for (const auto& field : request.fields)
        if (std::ranges::any_of(kAwsSources, [&](const char* name) { return begins_alike(field.name, name); }))
          return refuse(403, Reason::request, field.name + " is not signed where there is a path prefix", &request,
                        bound.get());
    auto key = AwsKey::of(bound->value.view(), bound->binding.field);
    if (!key) return refuse(403, Reason::locked, "the credential has another form", &request, bound.get());
    auto payload = payload_of(request, key->service, request.has_body);
    if (!payload) return refuse(403, Reason::request, payload.error().message, &request, bound.get());
    if (!*payload) decision.wants_body = true;
  }
  return decision;
}

// A body may have taken its time: what was decided before it may not be so any more.
Decision Inspector::judge_again(const Request& request, const Decision& decision) {
  if (decision.bound.empty()) return {};
  auto bindings = premises_.bindings();
  const int64_t now = milliseconds_now();
  for (const auto& bound : decision.bound) {
    if (!bindings || !bindings->has(bound->binding))
      return refuse(403, Reason::request, "the credential was revoked meanwhile", &request, bound.get());
    if (bound->is_over(now))
      return refuse(403, Reason::binding_expired, "the time of this credential is over", &request, bound.get());
  }
  auto path = request.target == "*" ? Result<std::string>("/") : normal_path(request.path());
  if (!path) return refuse(400, Reason::bad_request, "a path that is not clear: " + path.error().message, &request);
  auto verdict = premises_.egress()->request(name_, address_, port_, request.method, *path);
  if (!verdict.allowed())
    return refuse(403, verdict.reason, "no rule lets this method and path through", &request, nullptr, verdict.rule);
  return {};
}

Decision Inspector::inject(Request& request, const Decision& decision, std::optional<std::string_view> body) {
  if (auto odd = judge_again(request, decision); odd.status) return odd;
  for (const auto& bound : decision.bound) {
    const auto& binding = bound->binding;
    std::string_view value = bound->value.view();
    switch (binding.place) {
      case vault::Place::bearer: request.fields.push_back({"Authorization", "Bearer " + std::string(value)}); break;
      case vault::Place::basic: {
        std::string pair = binding.field + ":" + std::string(value);
        request.fields.push_back({"Authorization", "Basic " + vault::to_base64(pair)});
        vault::wipe(pair);
        break;
      }
      case vault::Place::header: request.fields.push_back({binding.field, filled(binding.format, value)}); break;
      case vault::Place::query: {
        std::string query(request.query());
        request.set_query(query + (query.empty() ? "" : "&") + percent_encoded(binding.field) + "=" +
                          percent_encoded(value));
        break;
      }
      case vault::Place::sigv4: {
        auto key = AwsKey::of(value, binding.field);
        auto payload = payload_of(request, key ? key->service : "", request.has_body);
        if (!key || !payload || (!*payload && !body))
          return refuse(403, Reason::request, "the request cannot be signed", &request, bound.get());
        auto hash = *payload ? **payload : payload_hash(*body);
        if (auto done = sign(request, *key, hash, ::time(nullptr)); !done)
          return refuse(403, Reason::request, done.error().message, &request, bound.get());
        break;
      }
    }
    // One for each binding: a value that was made anew takes the place of the one before it.
    std::erase_if(used_, [&](const auto& other) { return other->binding.id == binding.id; });
    used_.push_back(bound);
    tell(Event::Kind::injected, Reason::allowed, &request, bound.get(), "");
  }
  return {};
}

Screen Inspector::screen() {
  auto searches = premises_.searches();
  if (!searches) return {};
  return {[searches] { return searches->automaton(); },
          [this, searches](const std::string& id) {
            const auto& target = searches->target(id);
            premises_.record({.kind = Event::Kind::redacted,
                              .name = name_,
                              .address = address_.text(),
                              .port = port_,
                              .reason = Reason::allowed,
                              .rule = target.blocks ? "in an answer, which ends there" : "in an answer",
                              .host_verified = !cleartext_,
                              .binding = id,
                              .secret = target.secret});
            return target.blocks;
          }};
}

bool Inspector::is_over() const {
  const int64_t now = milliseconds_now();
  return std::any_of(used_.begin(), used_.end(), [&](const auto& bound) { return bound->is_over(now); });
}

bool Inspector::is_revoked() const {
  auto bindings = premises_.bindings();
  return std::any_of(used_.begin(), used_.end(),
                     [&](const auto& bound) { return !bindings || !bindings->has(bound->binding); });
}

}  // namespace isola::gate
