// Which kernels are installed: every folder with a kernel.json below …/jupyter/kernels is a language.
//
//   Specs specs = Specs::read(Specs::usual_folders(home));
//   ISOLA_TRY(const KernelSpec* spec, specs.find("js"));    // not_found lists what there is
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::interpreter {

struct KernelSpec {
  std::string name;  // the folder's
  std::string folder, display_name;
  std::string language;  // lower case
  std::vector<std::string> argv;
  std::map<std::string, std::string> env;
  bool interrupt_by_message = false;
  // What a spec of ours says in metadata.isola: how it takes variables of one cell, and what it can listen on.
  std::string cell_env;           // "metadata", "r"; empty: not at all
  std::string transport;          // "ipc", "tcp"; empty: ipc is tried, and tcp if it ends at that
  bool displays_values = false;   // the value of a cell comes as something displayed
  bool words_are_output = false;  // what stands on its standard output while a cell runs is the cell's
  bool tcp() const { return transport == "tcp"; }
  std::string broken;  // why it cannot be started, if that is known already
};

class Specs {
 public:
  static std::vector<std::string> usual_folders(const std::string& home);
  static Specs read(const std::vector<std::string>& folders);

  // By language, an alias of one (js, ts, py, sh), or the kernel's own name.
  Result<const KernelSpec*> find(const std::string& language) const;
  const std::vector<KernelSpec>& all() const { return all_; }

 private:
  std::vector<KernelSpec> all_;
};

}  // namespace isola::interpreter
