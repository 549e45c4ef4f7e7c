// Whole small files: read them, write them at once, write them so that a crash leaves the old or the new one.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/fd.h"

namespace isola {

Result<std::string> read_file(const std::string& path, size_t max = 16 << 20);
Result<std::string> read_file_at(int dir, const std::string& path, size_t max = 16 << 20);
// One write(2) into an existing file: what /proc and cgroup files want.
Result<void> write_file(const std::string& path, std::string_view text);
Result<void> write_file_at(int dir, const std::string& path, std::string_view text);
// Writes path.tmp, fsyncs, renames over path, fsyncs the folder.
Result<void> replace_file(const std::string& path, std::string_view text, int mode = 0644);
Result<void> make_dirs(const std::string& path, int mode = 0755);
// Whatever it is, a link that leads nowhere, too.
bool is_there(const std::string& path);
// Names that came and went in a folder are on disk.
Result<void> sync_folder(const std::string& path);
Result<void> write_all(int fd, std::string_view bytes);

}  // namespace isola
