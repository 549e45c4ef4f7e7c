// What the store keeps of an image, from what is known when it was made.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "launcher/protocol.h"
#include "store/records.h"

namespace isola::sandbox {

store::ImageRecord image_record(const store::SandboxRecord& sandbox, const launcher::CheckpointReply& saved,
                                bool memory, store::ImageKind kind);
// One that was found at the launcher.
store::ImageRecord image_record(const store::SandboxRecord& sandbox, const launcher::ImageSummary& found,
                                store::ImageKind kind);
// What the ledger has of a new sandbox.
nlohmann::json birth_data(const store::SandboxRecord& record);
// Steps and their microseconds, for the ledger.
nlohmann::json latency_data(const Latency& latency);

}  // namespace isola::sandbox
