// The loop of isola-kernels: callers on a unix socket, kernels, deadlines. One thread (libzmq has its own).
//
// A caller sends one request as a line of JSON and reads lines until the other side closes:
//
//   {"op":"execute","code":"1+1","language":"python"}
//     {"type":"start","context":"python","language":"python"}
//     {"type":"result","main":true,"data":{"text/plain":"2"}}
//     {"type":"end","status":"ok","execution_count":1,"duration_ms":2}
//   {"op":"create","language":"r","cwd":"/tmp"}    {"type":"context",…}
//   {"op":"list"}  {"op":"languages"}  {"op":"restart|interrupt|delete","context":"…"}
//   anything that cannot be done                   {"type":"failure","code":"not_found","message":…}
//
// A caller that no longer wants its cell says {"op":"interrupt"} on the same connection. One that just goes away (as
// all do when the sandbox is paused) leaves the cell running.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "interpreter/agent/context.h"

namespace isola::interpreter {

class Server {
 public:
  struct Options {
    std::string folder;  // for the kernels' sockets
    std::string home;    // where kernels work and specs are looked for
  };
  Server(Fd listener, Options options);
  ~Server();
  Result<void> run();  // returns only when something is broken

 private:
  struct Client {
    Fd fd;
    std::string in, out;
    size_t sent = 0;       // of `out`
    bool asked = false;    // its request was read
    bool closing = false;  // nothing more to say
    // What is there can wait so long for company: each piece wakes every process on the way out.
    std::optional<Clock::time_point> held;
    std::string context;  // of its cell
    CellPtr cell;
  };
  using ClientId = uint64_t;

  void accept();
  void read_from(ClientId id);
  void flush(ClientId id);
  void say(ClientId id, const Json& line, bool last);
  void refuse(ClientId id, const Error& error);
  void line(ClientId id, const std::string& text);
  void execute(ClientId id, const Json& request);
  void create(ClientId id, const Json& request);
  void warm(ClientId id, const Json& request);
  void list(ClientId id);
  void languages(ClientId id);
  void on_context(ClientId id, const std::string& op, const Json& request);

  Result<Context*> make(const std::string& id, const std::string& language, const std::string& cwd);
  // The default one of a language, made when it is first asked for.
  Result<Context*> usual(const std::string& language);
  Result<KernelSpec> usual_spec(const std::string& id) const;
  Result<Context*> find(const std::string& id);  // also a default one that nobody asked for yet
  void reap();

  Fd listener_, signals_;
  Options options_;
  void* zmq_ = nullptr;
  std::map<ClientId, Client> clients_;
  ClientId last_client_ = 0;
  std::map<std::string, std::unique_ptr<Context>> contexts_;
  std::vector<std::string> order_;   // of contexts, as they were made
  std::vector<std::string> doomed_;  // could not be started: they go at the end of the turn
};

}  // namespace isola::interpreter
