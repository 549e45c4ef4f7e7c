#include "program.h"

#include <stdlib.h>
#include <string.h>

namespace isola::hostile {

std::string errno_name(int number) {
  const char* name = ::strerrorname_np(number);
  return name ? name : fmt::format("errno {}", number);
}

Outcome judge(std::string_view what, long result) {
  if (result < 0) return contained(fmt::format("{}: {}", what, errno_name(errno)));
  return breach(fmt::format("{}: allowed", what));
}

namespace {
void append(std::string& list, std::string_view item) {
  if (list.size() > 2000) return;
  if (!list.empty()) list += "; ";
  list += item;
}
}  // namespace

void Attempts::add(std::string_view what, long result) {
  if (result < 0) {
    refused(what, errno_name(errno));
  } else {
    worked(what);
  }
}

void Attempts::worked(std::string_view what) { append(worked_, what); }

void Attempts::refused(std::string_view what, std::string_view how) {
  append(refused_, fmt::format("{}: {}", what, how));
}

Outcome Attempts::outcome() const {
  if (!worked_.empty()) return breach(worked_);
  if (refused_.empty()) return untried("there was nothing to try");
  return contained(refused_);
}

std::string Args::text(size_t i, std::string_view fallback) const {
  return std::string(i < words_.size() ? std::string_view(words_[i]) : fallback);
}

long Args::number(size_t i, long fallback) const { return i < words_.size() ? ::atol(words_[i]) : fallback; }

std::string_view to_string(Expect expect) {
  switch (expect) {
    case Expect::contained: return "contained";
    case Expect::killed_by_limit: return "killed-by-limit";
    case Expect::times_out: return "times-out";
    case Expect::floods: return "floods";
    case Expect::judged_outside: return "judged-outside";
  }
  return "?";
}

}  // namespace isola::hostile
