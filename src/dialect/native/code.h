// /v1/sandboxes/{id}/code, …/contexts and …/languages: stateful code in a sandbox (docs/interpreter.md).
#pragma once

#include <memory>

#include "http/router.h"
#include "sandbox/service.h"

namespace isola::native {

void add_code(http::RouteGroup& group, std::shared_ptr<sandbox::Service> service);

}  // namespace isola::native
