// Calls about files, for whoever has a link to a guest: a sandbox's, or the one that serves the files of a volume. What
// is asked for besides the path stands in the query.
#pragma once

#include <string>

#include "dialect/native/fields.h"
#include "http/exchange.h"
#include "sandbox/guest_link.h"

namespace isola::native {

Result<std::string> path_of(const http::Exchange& ex);  // the query parameter

// These reply.
Task<Result<void>> send_file(http::Exchange& ex, sandbox::GuestLink& link, const guest::Read& args,
                             std::string_view type);
Task<Result<void>> read_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user);
Task<Result<void>> stat_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user);
Task<Result<void>> list_folder(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user);
// These leave that to the caller.
Task<Result<uint64_t>> write_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user);
Task<Result<bool>> remove_file(http::Exchange& ex, sandbox::GuestLink& link, std::string path, std::string user);

// Fields of a body: a path, which must be there; a mode.
std::string needed(Fields& fields, const char* name);
uint32_t octal(Fields& fields, const char* name, uint32_t otherwise);

}  // namespace isola::native
