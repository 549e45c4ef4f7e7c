// Which handler answers which request.
//
//   Router router;
//   auto& api = router.group("/v1");                 // routes that share filters and the shape of their errors
//   api.filter(check_key);                           // may reply and say stop
//   api.add("GET", "/v1/sandboxes/{id}", get);       // ex.param("id"), percent-decoded
//   api.add("PUT", "/v1/sandboxes/{id}/files/{path...}", put_file).body_limit = Exchange::kNoLimit;
//   router.add("GET", "/healthz", health);           // the group of everything else
//   router.by_host([](Exchange& ex) -> std::optional<Handler> { … });   // before all routes: previews
//
// A literal segment beats a parameter, a parameter beats a tail. HEAD is answered through GET. A path without a route
// is a 404 and a wrong method a 405 with Allow, in the error shape of the group with the longest fitting prefix. Routes
// are added before the server starts; from then on the router is only read, by all workers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"
#include "http/error_reply.h"
#include "http/url.h"

namespace isola::http {

class Exchange;
class Router;
class RouteGroup;

using Handler = std::function<Task<void>(Exchange&)>;
// Runs before handlers. False: it has replied, go no further.
using Filter = std::function<Task<bool>(Exchange&)>;

struct Route {
  std::string method;
  std::string pattern;
  Handler handler;
  const RouteGroup* group = nullptr;
  std::vector<std::string> names;      // of the parameters, in order
  std::optional<uint64_t> body_limit;  // instead of the server's
  bool filtered = true;                // false: this route of a group goes without its filters
};

class RouteGroup {
 public:
  Route& add(std::string_view method, std::string_view pattern, Handler handler);
  void filter(Filter filter) { filters_.push_back(std::move(filter)); }
  void dress(Dresser dresser) { dresser_ = std::move(dresser); }
  const std::string& prefix() const { return prefix_; }
  const std::vector<Filter>& filters() const { return filters_; }
  const Dresser& dresser() const { return dresser_; }

 private:
  friend class Router;
  Router* router_ = nullptr;
  std::string prefix_;
  std::vector<Filter> filters_;
  Dresser dresser_ = plain_dress;
};

class Router {
 public:
  using HostHook = std::function<std::optional<Handler>(Exchange&)>;

  Router();
  ~Router();
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;

  // References stay valid. A wrong pattern or a second route of the same method and pattern ends the program: it is a
  // mistake in the source, found by the first test that runs.
  RouteGroup& group(std::string prefix);
  Route& add(std::string_view method, std::string_view pattern, Handler handler);
  void filter(Filter filter);  // of the group of everything else
  void by_host(HostHook hook);
  const HostHook& host_hook() const { return host_hook_; }
  std::vector<const Route*> routes() const;  // in the order of their adding

  struct Match {
    const Route* route = nullptr;
    std::vector<std::string> values;  // decoded, as many as route->names
    std::string allow;                // when the path is known and the method is not: "GET, HEAD, PUT"
    bool malformed = false;           // a parameter has a bad percent escape or a NUL
  };
  Match match(std::string_view method, std::string_view path) const;
  const RouteGroup& group_of(std::string_view path) const;  // the longest prefix that fits

  // Host hook, match, filters, handler; exceptions and missing replies become a 500.
  Task<void> dispatch(Exchange& exchange) const;

 private:
  friend class RouteGroup;
  struct Node;
  Route& add_to(RouteGroup& group, std::string_view method, std::string_view pattern, Handler handler);

  std::unique_ptr<Node> root_;
  std::vector<std::unique_ptr<RouteGroup>> groups_;  // [0]: everything else
  std::vector<std::unique_ptr<Route>> routes_;
  HostHook host_hook_;
};

}  // namespace isola::http
