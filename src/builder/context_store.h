// Files that were uploaded for builds, each project's own, named by their SHA-256, which is compared with what comes.
// Clients that name them by a hash of something else (E2B's: of the step and the files in it, not of the archive) have
// names of their own, so that they never stand for the others. They go some days after they were last used.
//
//   ContextStore contexts("/var/lib/isola/server/contexts");
//   ISOLA_TRY(auto draft, contexts.begin("default", hash));      // somewhere to write to
//   ISOLA_CHECK(draft.write(piece)); …
//   ISOLA_CHECK(contexts.keep(std::move(draft)));
//   ISOLA_TRY(Fd file, contexts.open("default", hash));
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "base/hash/sha256.h"

namespace isola::builder {

// 64 hex digits, as clients write them.
bool is_context_hash(const std::string& hash);
// The name of files whose hash is only what a client says.
inline std::string claimed(const std::string& hash) { return "claimed-" + hash; }

class ContextStore {
 public:
  static constexpr uint64_t kLargest = uint64_t{4} << 30;  // of one
  static constexpr uint64_t kMost = uint64_t{16} << 30;    // of all of a project's

  class Draft {
   public:
    Draft(Fd file, std::string path, std::string place, std::string wanted)
        : file_(std::move(file)), path_(std::move(path)), place_(std::move(place)), wanted_(std::move(wanted)) {}
    Draft(Draft&& other) noexcept
        : file_(std::move(other.file_)),
          path_(std::exchange(other.path_, {})),
          place_(std::move(other.place_)),
          wanted_(std::move(other.wanted_)),
          hash_(std::move(other.hash_)),
          written_(other.written_),
          until_look_(other.until_look_) {}
    Draft(const Draft&) = delete;
    Draft& operator=(const Draft&) = delete;
    ~Draft();                                    // what was not kept goes
    Result<void> write(std::string_view bytes);  // exhausted: too large

   private:
    friend class ContextStore;
    Fd file_;
    std::string path_, place_, wanted_;  // wanted: the hash that it must have; empty: any
    Sha256 hash_;
    uint64_t written_ = 0, until_look_ = 0;  // bytes; after so many more, what others wrote is counted again
  };

  explicit ContextStore(std::string folder) : folder_(std::move(folder)) {}

  bool has(const std::string& project, const std::string& hash) const;
  Result<Draft> begin(const std::string& project, const std::string& hash) const;  // exhausted: no room
  Result<void> keep(Draft draft) const;                                        // invalid: it is not what its name says
  Result<Fd> open(const std::string& project, const std::string& hash) const;  // counts as a use
  void sweep(std::chrono::hours unused) const;

 private:
  std::string path_of(const std::string& project, const std::string& hash) const;
  const std::string folder_;
};

}  // namespace isola::builder
