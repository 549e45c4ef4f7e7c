// The fields of a create, which a one-shot run has too.
#pragma once

#include "dialect/native/fields.h"
#include "sandbox/service.h"

namespace isola::native {

Result<sandbox::CreateRequest> read_create(Fields& fields, const sandbox::Settings& settings);
// `env` and `timeout`: what these two are called here (in a one-shot run the plain names are the sandbox's).
sandbox::CommandSpec read_command(Fields& fields, const char* env, const char* timeout);
store::Budget read_budget(Fields& fields, const char* name);

}  // namespace isola::native
