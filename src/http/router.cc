#include "http/router.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include "base/log.h"
#include "http/exchange.h"
#include "http/exchange_state.h"
#include "http/text.h"

namespace isola::http {

namespace {

constexpr size_t kMaxSegments = 128;

[[noreturn]] void wrong(std::string_view pattern, std::string_view why) {
  std::fprintf(stderr, "route %.*s: %.*s\n", int(pattern.size()), pattern.data(), int(why.size()), why.data());
  std::abort();
}

std::string_view next_segment(std::string_view& rest) {
  size_t slash = rest.find('/');
  std::string_view segment = rest.substr(0, slash);
  rest = slash == rest.npos ? std::string_view() : rest.substr(slash + 1);
  return segment;
}

}  // namespace

struct Router::Node {
  std::map<std::string, std::unique_ptr<Node>, std::less<>> literal;
  std::unique_ptr<Node> parameter;
  std::vector<Route*> here;  // the path ends here
  std::vector<Route*> tail;  // the path goes on anyhow

  static const Route* pick(const std::vector<Route*>& routes, std::string_view method) {
    const Route* get = nullptr;
    for (const Route* route : routes) {
      if (route->method == method || route->method == "*") return route;
      if (route->method == "GET") get = route;
    }
    return method == "HEAD" ? get : nullptr;
  }
};

Route& RouteGroup::add(std::string_view method, std::string_view pattern, Handler handler) {
  return router_->add_to(*this, method, pattern, std::move(handler));
}

Router::Router() : root_(std::make_unique<Node>()) { group(""); }
Router::~Router() = default;
Router::Router(Router&& other) noexcept { *this = std::move(other); }
Router& Router::operator=(Router&& other) noexcept {
  root_ = std::move(other.root_);
  groups_ = std::move(other.groups_);
  routes_ = std::move(other.routes_);
  host_hook_ = std::move(other.host_hook_);
  for (auto& group : groups_) group->router_ = this;
  return *this;
}

RouteGroup& Router::group(std::string prefix) {
  groups_.push_back(std::make_unique<RouteGroup>());
  groups_.back()->router_ = this;
  groups_.back()->prefix_ = std::move(prefix);
  return *groups_.back();
}

Route& Router::add(std::string_view method, std::string_view pattern, Handler handler) {
  return add_to(*groups_[0], method, pattern, std::move(handler));
}

void Router::filter(Filter filter) { groups_[0]->filter(std::move(filter)); }

void Router::by_host(HostHook hook) { host_hook_ = std::move(hook); }

Route& Router::add_to(RouteGroup& group, std::string_view method, std::string_view pattern, Handler handler) {
  if (!pattern.starts_with('/')) wrong(pattern, "a pattern starts with /");
  if (method != "*" && !is_token(method)) wrong(pattern, "the method is none");
  auto route = std::make_unique<Route>();
  route->method = method;
  route->pattern = pattern;
  route->handler = std::move(handler);
  route->group = &group;
  Node* node = root_.get();
  bool tail = false, more = true;
  for (std::string_view rest = pattern.substr(1); more;) {
    more = rest.find('/') != rest.npos;
    std::string_view segment = next_segment(rest);
    if (segment.starts_with('{')) {
      if (!segment.ends_with('}') || segment.size() < 3) wrong(pattern, "a parameter is {name}, a whole segment");
      segment = segment.substr(1, segment.size() - 2);
      tail = segment.ends_with("...");
      if (tail) segment.remove_suffix(3);
      for (const std::string& name : route->names) {
        if (name == segment) wrong(pattern, "two parameters have one name");
      }
      route->names.emplace_back(segment);
      if (tail && more) wrong(pattern, "nothing follows a tail");
      if (tail) break;
      if (!node->parameter) node->parameter = std::make_unique<Node>();
      node = node->parameter.get();
    } else {
      auto& child = node->literal[std::string(segment)];
      if (!child) child = std::make_unique<Node>();
      node = child.get();
    }
  }
  auto& list = tail ? node->tail : node->here;
  for (const Route* other : list) {
    if (other->method == method) wrong(pattern, "there is such a route already");
  }
  list.push_back(route.get());
  routes_.push_back(std::move(route));
  return *routes_.back();
}

std::vector<const Route*> Router::routes() const {
  std::vector<const Route*> out;
  for (const auto& route : routes_) out.push_back(route.get());
  return out;
}

const RouteGroup& Router::group_of(std::string_view path) const {
  const RouteGroup* best = groups_[0].get();
  for (const auto& group : groups_) {
    if (group->prefix_.size() > best->prefix_.size() && path.starts_with(group->prefix_)) best = group.get();
  }
  return *best;
}

namespace {

// The walk down the tree: literals before parameters before tails, and back up where that led nowhere.
struct Walk {
  std::string_view method;
  std::vector<std::string_view> values;
  std::vector<const std::vector<Route*>*> known;  // lists of other methods that fit the path
  size_t steps = 0;

  template <typename Node>
  const Route* take(const std::vector<Route*>& list) {
    if (const Route* route = Node::pick(list, method)) return route;
    if (!list.empty()) known.push_back(&list);
    return nullptr;
  }
  template <typename Node>
  const Route* visit(const Node& node, std::string_view rest, bool at_end, size_t depth) {
    // The bound keeps a path made for it from walking every mix of literals and parameters.
    if (depth > kMaxSegments || ++steps > 4096) return nullptr;
    if (at_end) return take<Node>(node.here);
    std::string_view after = rest;
    bool last = rest.find('/') == rest.npos;
    std::string_view segment = next_segment(after);
    if (auto child = node.literal.find(segment); child != node.literal.end()) {
      if (const Route* route = visit(*child->second, after, last, depth + 1)) return route;
    }
    if (node.parameter && !segment.empty()) {
      values.push_back(segment);
      if (const Route* route = visit(*node.parameter, after, last, depth + 1)) return route;
      values.pop_back();
    }
    if (!node.tail.empty()) {
      values.push_back(rest);
      if (const Route* route = take<Node>(node.tail)) return route;
      values.pop_back();
    }
    return nullptr;
  }
};

}  // namespace

Router::Match Router::match(std::string_view method, std::string_view path) const {
  Match match;
  if (!path.starts_with('/')) return match;
  Walk walk{.method = method};
  match.route = walk.visit(*root_, path.substr(1), false, 0);
  if (match.route) {
    match.values.reserve(walk.values.size());
    for (std::string_view raw : walk.values) {
      auto value = percent_decode(raw);
      if (!value) {
        match.malformed = true;
        return match;
      }
      match.values.push_back(std::move(*value));
    }
    return match;
  }
  for (const auto* list : walk.known) {
    for (const Route* route : *list) {
      auto add = [&](std::string_view name) {
        if (has_item(match.allow, name)) return;
        if (!match.allow.empty()) match.allow += ", ";
        match.allow += name;
      };
      add(route->method);
      if (route->method == "GET") add("HEAD");
    }
  }
  return match;
}

Task<void> Router::dispatch(Exchange& ex) const {
  Exchange::State& state = ex.state();
  state.group = groups_[0].get();
  bool threw = false;
  try {
    Handler by_host;
    const Handler* handler = nullptr;
    if (host_hook_) {
      if (auto chosen = host_hook_(ex)) {
        by_host = std::move(*chosen);
        handler = &by_host;
      }
    }
    if (!handler && !ex.replied()) {
      Match found = match(ex.method(), ex.path());
      state.group = found.route ? found.route->group : &group_of(ex.path());
      if (found.malformed) {
        ex.fail(Error{Code::invalid, "the path has a malformed percent escape"});
      } else if (found.route) {
        state.route = found.route;
        state.values = std::move(found.values);
        if (found.route->body_limit) ex.body_limit(*found.route->body_limit);
        handler = &found.route->handler;
      } else if (!found.allow.empty()) {
        ex.set_header("Allow", found.allow);
        ex.fail(ErrorReply{405, "method_not_allowed", "this path answers to " + found.allow + " only", {}});
      } else {
        ex.fail(Error{Code::not_found, "there is nothing at this path"});
      }
      if (found.route && !ex.replied() && found.route->filtered) {
        for (const Filter& filter : state.group->filters()) {
          bool go_on = co_await filter(ex);
          if (!go_on) {
            handler = nullptr;
            break;
          }
        }
      }
    }
    if (handler) co_await (*handler)(ex);
  } catch (const std::exception& e) {
    log::write(log::Level::error, "http", "the handler threw: " + log::quoted(e.what()),
               {{"request_id", ex.request_id()}});
    threw = true;
  }
  if (threw && ex.replied() && !state.pending) {
    ex.abort();  // half of a stream is out: say that it is not the whole
  } else if (threw || !ex.replied()) {
    if (!threw) log::write(log::Level::error, "http", "the handler gave no reply", {{"request_id", ex.request_id()}});
    ex.fail(Error{Code::internal, "the server failed at this request; its log knows it by this id"});
  }
}

}  // namespace isola::http
