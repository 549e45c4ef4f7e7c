// Small tools that several hostile programs share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program.h"

namespace isola::hostile {

// The environment variable's value, or "".
std::string env(const char* name);
// Where the runner says that a secret lies on the host; "" when it did not say.
std::string canary_file();
// A folder to write in: ISOLA_WORK, or /tmp.
std::string work_dir();

// Up to 64 KiB of a file; nothing when it cannot be read (errno says why).
std::optional<std::string> slurp(const std::string& path);
// Reads the file and writes the very same bytes back. 0, or -1 with errno.
int write_back(const std::string& path);
// Writes the bytes in one go. 0, or -1 with errno.
int spill(const std::string& path, std::string_view bytes);

// Tries to read a file that only the host has; what was read goes to stdout, so that the runner finds the secret.
bool read_host_file(Attempts& attempts, const std::string& path);

// The numbers under /proc.
std::vector<int> all_pids();
// The process that an attack is aimed at: ISOLA_TARGET_PID, or 1.
int target_pid();

// True where root is the machine's own root: the whole id range mapped to itself.
bool in_first_user_namespace();

// Waits for the condition, at most so long; true when it came.
bool wait_until(long milliseconds, const std::function<bool()>& condition);
long now_ms();

// Runs the function in a child; its Outcome comes back. A child that a signal ended is `contained`.
Outcome in_child(const std::function<Outcome()>& run);

}  // namespace isola::hostile
