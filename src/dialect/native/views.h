// What the API shows of things.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dialect/shared/text.h"
#include "guest/messages.h"
#include "ledger/event.h"
#include "ledger/usage.h"
#include "sandbox/box.h"
#include "store/records.h"

namespace isola::native {

using dialect::dump;
using dialect::when;

nlohmann::json view(const store::SandboxRecord& sandbox);
nlohmann::json view(const store::ImageRecord& snapshot);
nlohmann::json view(const std::vector<store::VolumeUse>& volumes);
nlohmann::json view(const sandbox::CommandInfo& command);
nlohmann::json view(const store::KeyRecord& key);
nlohmann::json view(const store::ProjectRecord& project);
nlohmann::json view(const ledger::Event& event);
nlohmann::json view(const guest::Stat& stat);
nlohmann::json view(const guest::Exit& exit);
nlohmann::json view(const Latency& latency);
nlohmann::json view(const store::Budget& budget);
nlohmann::json view(const ledger::Usage& used, const ledger::PriceSheet& prices);

}  // namespace isola::native
