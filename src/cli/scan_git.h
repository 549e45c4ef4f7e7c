// What git is about to take or to send, as objects: their names, and their bytes in pieces.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::cli {

struct GitObject {
  std::string id;
  std::string where;  // its path; of a commit or tag: "commit 1a2b3c4d5e6f"
};

// Files of the index that a commit would change.
Result<std::vector<GitObject>> staged_objects();
// What a push would send that no branch of the remote has; `lines` is what git tells a pre-push hook. `remote` empty:
// that of no remote.
Result<std::vector<GitObject>> pushed_objects(const std::string& lines, const std::string& remote);

// One after the other, each in pieces: `piece(object, bytes)`; an empty piece ends the object.
using GitSink = std::function<void(const GitObject& object, std::string_view bytes)>;
Result<void> read_objects(const std::vector<GitObject>& objects, const GitSink& piece);

}  // namespace isola::cli
