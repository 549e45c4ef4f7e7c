// The grammar of a Dockerfile below its instructions: lines, words with quotes, variables, JSON arrays, here-documents;
// and words quoted for bash. `escape` is '\\' unless the file says otherwise.
//
//   Budget budget;
//   ISOLA_TRY(auto words, split_words("a=1 b=\"$x 2\"", '\\'));        // a=1, b="$x 2": still with their quotes
//   ISOLA_TRY(std::string value, fill_in("\"$x 2\"", '\\', look, budget));
//   std::string line = bash_line({"echo", "it's"});                    // echo 'it'\''s'
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace isola::builder {

inline constexpr size_t kMaxShown = 500;  // bytes of an instruction in the log
inline constexpr std::string_view kBlanks = " \t\r\v\f";

// How much a Dockerfile may become: thirty lines `ENV A=$A$A` are a gigabyte.
class Budget {
 public:
  static constexpr size_t kMost = 16 << 20;
  Result<void> spend(size_t bytes);

 private:
  size_t left_ = kMost;
};

std::string_view trimmed(std::string_view text);
std::string lower(std::string_view text);
std::string upper(std::string_view text);
// On one line of at most `most` bytes, cut between two characters, with "…" when something was cut and without what
// could disturb a terminal or a log.
std::string clipped(std::string_view text, size_t most);
std::string shown(std::string_view text);  // as it stands in an error: clipped and in quotes
bool is_variable_name(std::string_view text);

// Parted at blanks that are neither quoted nor escaped; the words keep their quotes.
Result<std::vector<std::string_view>> split_words(std::string_view text, char escape);

// Takes --name and --name=value off the front of `text`. The values keep their quotes.
struct Flag {
  std::string_view name;
  std::string_view value;
};
Result<std::vector<Flag>> take_flags(std::string_view& text, char escape);

// Takes quotes and escapes away and puts values in: $x, ${x}, ${x:-d}, ${x-d}, ${x:+a}, ${x+a}, ${x:?e}, ${x?e}.
using Lookup = std::function<std::optional<std::string_view>(std::string_view)>;
Result<std::string> fill_in(std::string_view text, char escape, const Lookup& look, Budget& budget);
// The same in a text that is no word, a here-document: quotes and escapes stay, and what is escaped is left alone.
Result<std::string> fill_in_text(std::string_view text, char escape, const Lookup& look, Budget& budget);

// A JSON array of strings and nothing else; nullopt: it is none.
std::optional<std::vector<std::string>> json_words(std::string_view text);

// The word <<EOF, <<-EOF, <<"EOF", 3<<EOF; nullopt: it is something else (a here-string, a shift).
struct Heredoc {
  std::string delimiter = {};
  bool strip_tabs = false;
  bool whole = false;     // the word has nothing behind the delimiter, as in <<EOF)
  bool quoted = false;    // as in <<"EOF": nothing is filled in
  std::string body = {};  // every line with its end
};
std::optional<Heredoc> heredoc_of(std::string_view word);
std::vector<Heredoc> heredocs_in(std::string_view text, char escape);

std::string single_quoted(std::string_view text);
// The words as they are, whatever they hold: nothing in them means something to bash.
std::string bash_line(const std::vector<std::string>& words);

// A command for SHELL: bash is given it as it is; a shell with options of its own is started by bash.
std::string in_shell(const std::vector<std::string>& shell, const std::string& command);
// A script that names its interpreter: it has to be a file for that.
std::string as_file(const std::string& script);

// Without "", "." and ".." between the slashes, and without the first slash. What leaves the root with ".." stays
// there, or is nullopt.
enum class Leaving { stays, refused };
std::optional<std::string> clean_path(std::string_view path, Leaving leaving);

// The one of `known` that differs in at most two characters; empty: none does.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known);

// "Dockerfile line 3: …"
std::unexpected<Error> at_line(size_t number, const Error& error);

struct Instruction {
  size_t number = 0;      // of its first line
  std::string word = {};  // as written
  std::string name = {};  // in capitals
  std::string rest = {};  // on one line
  std::string line = {};  // all of it for the log
  std::vector<Heredoc> heredocs = {};
};

// Makes instructions of lines: continuations, comments and here-documents end here.
class LineReader {
 public:
  explicit LineReader(std::string_view text);
  char escape() const { return escape_; }
  Result<void> read_directives();
  Result<std::optional<Instruction>> next();  // nullopt: there are no more

 private:
  bool more() const { return at_ < text_.size(); }
  std::string_view next_line();
  bool continues(std::string_view& line) const;
  std::string joined_lines(std::string_view first, std::string& shown_line);
  Result<void> read_heredocs(Instruction& out);
  Result<void> read_body(Heredoc& heredoc, std::string& shown_line);

  std::string_view text_;
  size_t at_ = 0;
  size_t number_ = 0;  // of the line that was read last
  char escape_ = '\\';
};

}  // namespace isola::builder
