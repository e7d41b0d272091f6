#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

/// The command line of `trainyard`, over CLI11, which only command.cc includes: it takes seconds to
/// compile.
namespace trainyard::cli {

/// A handle of one option or positional argument. Each call returns the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  Option& one_of(std::vector<std::string> words);
  Option& between(int64_t least, int64_t most);
  Option& between_reals(double least, double most);
  /// Numbers may carry the suffixes K, M and G, powers of 1024.
  Option& with_suffixes();
  /// One word holds several values.
  Option& separated_by(char delimiter);
  /// Exactly so many words.
  Option& words(int count);
  /// The option takes one word and may be repeated; every one counts.
  Option& repeatable();
  /// The help shows the value that the variable holds now.
  Option& show_default();
  /// `complaint` returns what is wrong with a word, or an empty text; the help shows `kind`.
  Option& check(std::function<std::string(const std::string&)> complaint, const std::string& kind);

 private:
  CLI::Option* option_;
};

/// A handle of the program or of one of its commands. Variables that it is given must outlive the
/// parse.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command command(const std::string& name, const std::string& what) const;
  /// Values are strings, numbers or vectors of them: the types that command.cc instantiates.
  /// `name` is "-o,--output" for an option, "FILE" for a positional argument.
  template <typename Value>
  Option option(const std::string& name, Value& value, const std::string& help) const;
  Option flag(const std::string& name, bool& value, const std::string& help) const;
  /// A flag that may carry a number, `given` where it does not: --trace, --trace=5.
  Option flag(const std::string& name, int64_t& value, int64_t given,
              const std::string& help) const;
  /// Adds `-o, --output` with "text" or "json"; the default is what `output` holds.
  void output(std::string& output, const std::string& help = "Output format") const;
  void footer(const std::string& text) const;
  /// Leaves it out of its parent's help.
  void hide() const;
  void require_command() const;
  /// What the command does once the whole line is parsed.
  void runs(std::function<void()> run) const;

 private:
  CLI::App* app_;
};

/// The whole command line of a program.
class CommandLine {
 public:
  CommandLine(const std::string& name, const std::string& what, const std::string& version);
  ~CommandLine();

  Command root() const;
  /// Parses the words and runs the command that they name. Every option refuses the empty word,
  /// which comes from a script's variable that was never set. Returns nothing when a command has
  /// run; else 0 when help or version were asked for and printed to `out`, wrapped to `columns`,
  /// and 64 when `err` was told what is wrong.
  std::optional<int> parse(const std::vector<std::string>& words, size_t columns, std::ostream& out,
                           std::ostream& err);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace trainyard::cli
