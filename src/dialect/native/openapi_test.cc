// The contract and the code say the same: every route is in openapi.json, and nothing is there that has no route.
#include "dialect/native/openapi.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "dialect/native/api.h"
#include "dialect/native/create_fields.h"
#include "dialect/native/fields.h"

namespace isola::native {
namespace {

using nlohmann::json;

const json& contract() {
  static const json parsed = json::parse(openapi_text(), nullptr, false);
  return parsed;
}

bool is_method(const std::string& word) {
  static const std::set<std::string> kMethods = {"get", "put", "post", "delete", "options", "head", "patch", "trace"};
  return kMethods.contains(word);
}

struct Operation {
  std::string name;  // GET /v1/sandboxes/{id}
  std::string path;
  const json& value;
};

std::vector<Operation> operations() {
  std::vector<Operation> all;
  for (const auto& [path, item] : contract()["paths"].items()) {
    for (const auto& [word, value] : item.items()) {
      if (!is_method(word)) continue;
      std::string method = word;
      for (char& c : method) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      all.push_back({method + " " + path, path, value});
    }
  }
  return all;
}

// Nothing is called, so that nothing has to be there to be called.
http::Router routed() {
  http::Router router;
  Api api(nullptr, nullptr, nullptr, {});
  api.add_to(router);
  return router;
}

// OpenAPI knows no parameter of several segments: {path...} is {path} there.
std::string as_written(std::string pattern) {
  if (auto at = pattern.find("...}"); at != std::string::npos) pattern.erase(at, 3);
  return pattern;
}

const json* resolved(const json& value) {
  if (!value.is_object() || !value.contains("$ref")) return &value;
  std::string ref = value["$ref"];
  json::json_pointer place(ref.substr(1));
  return contract().contains(place) ? &contract()[place] : nullptr;
}

void each_ref(const json& value, const std::function<void(const std::string&)>& look) {
  if (value.is_object() && value.contains("$ref") && value["$ref"].is_string()) look(value["$ref"]);
  if (value.is_structured())
    for (const auto& inner : value) each_ref(inner, look);
}

TEST(OpenApi, IsJson) {
  ASSERT_TRUE(contract().is_object());
  EXPECT_EQ(contract()["openapi"], "3.1.0");
  // It is compiled in as pieces of a fixed size, which must not cut a character.
  for (char c : openapi_text()) ASSERT_GE(c, 0) << "openapi.json is plain ASCII";
}

TEST(OpenApi, HasEveryRouteAndNoOther) {
  std::set<std::string> coded, written;
  http::Router router = routed();
  for (const auto* route : router.routes()) coded.insert(route->method + " " + as_written(route->pattern));
  for (const auto& operation : operations()) written.insert(operation.name);
  ASSERT_FALSE(coded.empty());
  for (const auto& name : coded) EXPECT_TRUE(written.contains(name)) << name << " is missing in openapi.json";
  for (const auto& name : written) EXPECT_TRUE(coded.contains(name)) << name << " of openapi.json has no route";
}

TEST(OpenApi, EveryOperationHasItsOwnIdAndAGoodReply) {
  std::map<std::string, std::string> ids;
  for (const auto& operation : operations()) {
    ASSERT_TRUE(operation.value.contains("operationId")) << operation.name;
    auto [at, fresh] = ids.emplace(operation.value["operationId"], operation.name);
    EXPECT_TRUE(fresh) << operation.name << " and " << at->second << " share an operationId";
    bool good = false;
    for (const auto& [status, reply] : operation.value["responses"].items()) {
      good |= status == "101" || status.starts_with('2');
      const json* body = resolved(reply);
      ASSERT_TRUE(body) << operation.name << " " << status;
      EXPECT_TRUE(body->contains("description")) << operation.name << " " << status;
    }
    EXPECT_TRUE(good) << operation.name << " never succeeds";
  }
}

// It writes to the store or to the ledger, or wakes a sandbox that sleeps: a full disk is in the way of each. What is
// inside a sandbox answers for its ports, and a signature is kept nowhere.
bool changes_something(const Operation& operation) {
  return operation.path.starts_with("/v1/") && !operation.name.starts_with("GET ") &&
         operation.path.find("/ports/{port}") == std::string::npos;
}

// What the guard and the server itself can say is said everywhere; errors have the one shape.
TEST(OpenApi, EveryOperationHasTheCommonErrors) {
  for (const auto& operation : operations()) {
    bool guarded = operation.path.starts_with("/v1/");
    bool open = operation.value.contains("security") && operation.value["security"].empty();
    EXPECT_NE(guarded, open) << operation.name << ": what is below /v1 wants a key, what is not does not";
    EXPECT_EQ(guarded, operation.value.contains("x-isola-scope")) << operation.name;
    std::set<std::string> wanted = {"400", "408", "417", "431", "500", "501", "503"};
    if (guarded) wanted.insert({"401", "403", "421"});
    if (operation.path.find("{id}") != std::string::npos) wanted.insert("404");
    if (changes_something(operation)) wanted.insert("507");
    for (const auto& status : wanted)
      EXPECT_TRUE(operation.value["responses"].contains(status)) << operation.name << " has no " << status;
    for (const auto& [status, reply] : operation.value["responses"].items()) {
      if ((status[0] != '4' && status[0] != '5') || status.ends_with("XX")) continue;
      EXPECT_NE(resolved(reply)->dump().find("#/components/schemas/Error"), std::string::npos)
          << operation.name << " " << status << " is not in the one shape of errors";
    }
  }
}

TEST(OpenApi, ParametersOfThePathAreDeclared) {
  for (const auto& operation : operations()) {
    std::set<std::string> in_path, declared;
    for (size_t at = operation.path.find('{'); at != std::string::npos; at = operation.path.find('{', at + 1))
      in_path.insert(operation.path.substr(at + 1, operation.path.find('}', at) - at - 1));
    for (const auto& parameter : operation.value.value("parameters", json::array())) {
      const json* value = resolved(parameter);
      ASSERT_TRUE(value) << operation.name;
      if ((*value)["in"] == "path") declared.insert((*value)["name"].get<std::string>());
    }
    EXPECT_EQ(in_path, declared) << operation.name;
  }
}

TEST(OpenApi, ReferencesLeadSomewhere) {
  each_ref(contract(), [](const std::string& ref) {
    ASSERT_TRUE(ref.starts_with("#/")) << ref;
    EXPECT_TRUE(contract().contains(json::json_pointer(ref.substr(1)))) << ref;
  });
}

// Unknown fields are refused by the code (Fields::done), so the contract refuses them, too.
TEST(OpenApi, JsonBodiesAreClosed) {
  int seen = 0;
  for (const auto& operation : operations()) {
    if (!operation.value.contains("requestBody")) continue;
    const json& content = operation.value["requestBody"]["content"];
    if (!content.contains("application/json")) continue;
    const json* schema = resolved(content["application/json"]["schema"]);
    ASSERT_TRUE(schema) << operation.name;
    EXPECT_EQ(schema->value("additionalProperties", true), false) << operation.name;
    ++seen;
  }
  EXPECT_GT(seen, 10);
}

// Every field of a create that the contract names is one that the code reads; its examples are good requests.
TEST(OpenApi, FieldsOfACreateAreRead) {
  const json& schema = contract()["components"]["schemas"]["SandboxCreate"];
  auto read = [](const json& body) -> Result<void> {
    ISOLA_TRY(Fields fields, Fields::parse(body.dump()));
    fields.flag("latency");
    ISOLA_CHECK(read_create(fields, {}));
    return fields.done();
  };
  ASSERT_TRUE(schema["properties"].is_object());
  for (const auto& [name, value] : schema["properties"].items()) {
    auto good = read(json{{name, nullptr}});
    EXPECT_TRUE(good) << (good ? "" : good.error().message);
  }
  for (const auto& [name, value] : contract()["components"]["schemas"]["Budget"]["properties"].items()) {
    auto good = read(json{{"budget", {{name, value.contains("default") ? value["default"] : json(1)}}}});
    EXPECT_TRUE(good) << (good ? "" : good.error().message);
  }
  ASSERT_FALSE(schema["examples"].empty());
  for (const auto& example : schema["examples"]) {
    auto good = read(example);
    EXPECT_TRUE(good) << (good ? "" : good.error().message);
  }
  EXPECT_FALSE(read(json{{"colour", "red"}}));
}

}  // namespace
}  // namespace isola::native
