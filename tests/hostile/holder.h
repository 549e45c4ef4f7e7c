// The neighbour's part: `isola-hostile hold ipc|lock|still` takes what the programs beside it look for, says "holding",
// and keeps it until its standard input ends. Exit code 0: it had it all the time.
#pragma once

#include <string_view>

namespace isola::hostile {

int hold(std::string_view what);

}  // namespace isola::hostile
