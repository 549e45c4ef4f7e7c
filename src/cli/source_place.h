// Where a source of secrets may lead (docs/vault.md#sources): what is judged is the address that is dialled.
//
//   options.may_dial = [source](const sockaddr* to) { return may_lead_to(source, place of `to`); };
#pragma once

#include "gate/address.h"
#include "vault/source.h"

namespace isola::cli {

// To the open internet with TLS alone: a source is asked with credentials of its own. To what is somebody's inside only
// where the source may, and in clear, too.
bool may_lead_to(const vault::Source& source, gate::Place place);

}  // namespace isola::cli
