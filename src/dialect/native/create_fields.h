// The fields of a create, which a one-shot run has too.
#pragma once

#include "dialect/native/fields.h"
#include "sandbox/service.h"

namespace isola::native {

Result<sandbox::CreateRequest> read_create(Fields& fields, const sandbox::Settings& settings);
sandbox::CommandSpec read_command(Fields& fields);
store::Budget read_budget(Fields& fields, const char* name);

}  // namespace isola::native
