// The parts of a record that are maps and lists, as JSON text in one column.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "store/records.h"

namespace isola::store {

// invalid: something in it is not UTF-8. `what` names it in the sentence.
Result<std::string> to_json(const Labels& labels, std::string_view what);
Result<std::string> to_json(const std::vector<std::string>& list, std::string_view what);
Result<std::string> to_json(const std::vector<VolumeUse>& volumes);
Result<Labels> labels_of(const std::string& json);
Result<std::vector<std::string>> list_of(const std::string& json);
Result<std::vector<VolumeUse>> volumes_of(const std::string& json);

}  // namespace isola::store
