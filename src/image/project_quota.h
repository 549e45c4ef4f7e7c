// Project quotas of XFS and ext4: a number on a folder that everything below it inherits, and a limit on that number.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "image/layer_store.h"

namespace isola::image {

// Ids of ours lie in one range (a fixed top byte), so that an operator can tell them from his own.
inline constexpr uint32_t kProjectBase = 0x49000000;
inline constexpr uint32_t kProjectMask = 0x00ffffff;

// Code::unsupported, with what an operator can do, when the filesystem of `dir` keeps no project quotas.
Result<void> check_project_quota(const std::string& dir);
// A project id that nobody uses: no limit and no usage is recorded for it.
Result<uint32_t> free_project(const std::string& dir);
Result<void> set_project(const std::string& folder, uint32_t project);  // inherited by what is created below
Result<uint32_t> project_of(const std::string& folder);
Result<void> limit_project(const std::string& dir, uint32_t project, const LayerLimits& limits);  // 0 = none
Result<uint64_t> project_limit(const std::string& dir, uint32_t project);                         // in bytes; 0 = none
Result<LayerUsage> project_usage(const std::string& dir, uint32_t project);

}  // namespace isola::image
