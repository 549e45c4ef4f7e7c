#include "interpreter/warm.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "image/recipes.h"
#include "interpreter/client.h"
#include "interpreter/events.h"

namespace isola::interpreter {

namespace {
// What most first cells import, and what takes long.
constexpr const char* kImports = "numpy,pandas,matplotlib.pyplot";
}  // namespace

bool has_interpreter(const std::string& template_name) {
  auto recipe = image::find_recipe(template_name);
  return recipe && recipe->interpreter;
}

Task<Result<void>> warm(sandbox::Service& service, sandbox::BoxPtr box) {
  nlohmann::json request = {{"op", "warm"}, {"language", "python"}};
  request["sandbox_env"]["ISOLA_PREIMPORT"] = kImports;
  ISOLA_CO_TRY(std::string line, co_await ask_once(service, box, request.dump()));
  auto answer = parse_line(line);
  if (answer && answer->contains("type") && (*answer)["type"] == "context") co_return Result<void>();
  co_return fail(Code::unavailable, "the interpreter inside says: " + log::quoted(line.substr(0, 2000)));
}

}  // namespace isola::interpreter
