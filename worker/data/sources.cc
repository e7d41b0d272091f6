#include "worker/data/sources.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <map>
#include <set>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <unistd.h>
#include <utility>

#include "common/base/unique_fd.h"
#include "common/io/unexpanded.h"
#include "worker/data/text/pattern.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPieceBytes = size_t{1} << 20;

Error list_error(const fs::path& path, const std::error_code& code) {
  return {ErrorCode::kIo, "list " + path.string() + ": " + code.message()};
}

bool is_split_name(std::string_view name) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_inner = [&](char c) {
    return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 32 && is_lower(name[0]) &&
         std::ranges::all_of(name, is_inner) && name != "train";
}

/// A glob for which an expression was wanted: a star first, or after a letter, a digit or a dash,
/// and nothing that only expressions have. Some compile, and mean other names.
bool is_glob(std::string_view expression) {
  if (expression.starts_with('*') || expression.starts_with('?')) return true;  // nothing to repeat
  if (expression.find_first_of("\\^$|()+[]{}") != std::string_view::npos) return false;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  };
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] == '*' && (i == 0 || is_plain(expression[i - 1]))) return true;
  }
  return false;
}

std::string expression_of_glob(std::string_view glob) {
  std::string expression = "^";
  bool alternatives = false;
  for (const char c : glob) {
    if (c == '.') {
      expression += "\\.";
    } else if (c == '*') {
      expression += ".*";
    } else if (c == '{' || c == '}') {
      alternatives = c == '{';
      expression += alternatives ? "(?:" : ")";
    } else if (c == ',' && alternatives) {
      expression += '|';
    } else {
      expression += c == '?' ? '.' : c;
    }
  }
  return expression + "$";
}

Result<Pattern> compile_expression(const std::string& what, std::string_view expression) {
  if (is_glob(expression)) {
    return Error{ErrorCode::kInvalidConfig,
                 what + ": found '" + std::string(expression) +
                     "', which looks like a glob, wanted a regular expression: '" +
                     expression_of_glob(expression) + "' for what that glob means"};
  }
  Result<Pattern> pattern = Pattern::compile(expression);
  if (!pattern) return pattern.error().with_context(what);
  return pattern;
}

/// Why an expression with a slash in it matches nothing.
std::string names_only(std::string_view expression) {
  if (expression.find('/') == std::string_view::npos) return "";
  return "; it is searched in a file's own name, without its folders, so that '/' is never found. "
         "To split by folders, prepare each of them";
}

struct CompiledRule {
  std::string name;
  std::string text;
  Pattern pattern;
  bool caught = false;
};

Result<std::vector<CompiledRule>> compile(std::span<const SplitRule> rules) {
  std::vector<CompiledRule> compiled;
  for (const SplitRule& rule : rules) {
    if (!is_split_name(rule.name)) {
      return Error{ErrorCode::kInvalidConfig,
                   "split: found the name '" + rule.name +
                       "', wanted a lower-case letter, then up to 31 of a-z 0-9 _ -, and not "
                       "'train' (the rest is train)"};
    }
    const auto same = [&](const CompiledRule& other) { return other.name == rule.name; };
    if (std::ranges::any_of(compiled, same)) {
      return Error{ErrorCode::kInvalidConfig,
                   "split " + rule.name + ": given twice; join the expressions with |"};
    }
    TRAINYARD_ASSIGN(Pattern pattern, compile_expression("split " + rule.name, rule.pattern));
    compiled.push_back({rule.name, rule.pattern, std::move(pattern)});
  }
  return compiled;
}

/// Collects the files of one call of collect_sources.
class Collector {
 public:
  Collector(Pattern include, std::string_view include_text, std::vector<CompiledRule> rules)
      : include_(std::move(include)), include_text_(include_text), rules_(std::move(rules)) {}

  Status add_input(const fs::path& input) {
    std::error_code code;
    const fs::file_status status = fs::status(input, code);
    if (status.type() == fs::file_type::not_found) {
      const std::string reason = unexpanded(input);
      return Error{ErrorCode::kNotFound, input.string() + ": no such file or folder" +
                                             (reason.empty() ? "" : "; " + reason)};
    }
    if (!fs::status_known(status)) return list_error(input, code);
    if (fs::is_directory(status)) return add_folder(input);
    if (!fs::is_regular_file(status)) {
      return Error{ErrorCode::kInvalidData, input.string() + ": neither a file nor a folder"};
    }
    TRAINYARD_ASSIGN(const Source* first, add(input, input.filename().string()));
    if (first != nullptr) return given_twice(input);
    return {};
  }

  Result<Sources> finish() && {
    for (const CompiledRule& rule : rules_) {
      if (rule.caught) continue;
      return Error{ErrorCode::kInvalidConfig, "split " + rule.name +
                                                  ": its expression matches none of the " +
                                                  std::to_string(result_.files.size()) +
                                                  " files left" + names_only(rule.text)};
    }
    if (std::ranges::none_of(result_.files, [](const Source& s) { return s.split == "train"; })) {
      return Error{ErrorCode::kInvalidConfig, "split train: the other splits leave it no file"};
    }
    return std::move(result_);
  }

 private:
  static Error given_twice(const fs::path& path) {
    return {ErrorCode::kInvalidConfig, path.string() + ": given twice"};
  }

  Status add_folder(const fs::path& input) {
    std::error_code code;
    const fs::path real = fs::canonical(input, code);
    if (code) return list_error(input, code);
    if (folders_read_.contains(real.string())) return given_twice(input);
    const size_t before = result_.files.size();
    TRAINYARD_ASSIGN(
        const std::vector<FoundFile> found,
        walk_folder(input, include_, include_text_, folders_read_, result_.passed_over));
    for (const FoundFile& file : found) {
      TRAINYARD_ASSIGN(const Source* first, add(file.path, file.name));
      if (first == nullptr) continue;
      pass_over(result_.passed_over, "another name of a file that is read already",
                readable_name(file.name) + " = " + first->name);
    }
    if (found.empty()) {
      std::string why;
      for (const PassedOver& group : result_.passed_over)
        why += "; skipped: " + describe(group, 3);
      return Error{ErrorCode::kInvalidConfig,
                   input.string() + ": found no file whose name matches '" + include_text_ +
                       "'; change --include ('.' matches every name)" + names_only(include_text_) +
                       why};
    }
    // As strings: a path's own order puts folders by component, which people do not expect.
    const auto begin = result_.files.begin() + static_cast<std::ptrdiff_t>(before);
    std::sort(begin, result_.files.end(), [](const Source& a, const Source& b) {
      return a.path.generic_string() < b.path.generic_string();
    });
    return {};
  }

  /// Adds a file, or returns the source of its split that is it under another name. What has names
  /// in several splits is a copy for find_copies() to tell.
  Result<const Source*> add(const fs::path& path, const std::string& name) {
    Source source{path, readable_name(name), "train", 0};
    TRAINYARD_ASSIGN(CompiledRule* const rule, rule_of(readable_name(path.filename().string())));
    if (rule != nullptr) source.split = rule->name;
    struct stat inode {};
    if (::stat(path.c_str(), &inode) != 0) return io_error("look at " + path.string(), errno);
    const auto [known, is_new] =
        sources_.try_emplace({inode.st_dev, inode.st_ino, source.split}, source);
    if (!is_new) return &known->second;
    source.bytes = inode.st_size;
    if (rule != nullptr) rule->caught = true;
    result_.files.push_back(std::move(source));
    return nullptr;
  }

  Result<CompiledRule*> rule_of(const std::string& file_name) {
    for (CompiledRule& rule : rules_) {
      auto found = rule.pattern.found_in(file_name);
      if (!found) return found.error().with_context("split " + rule.name);
      if (*found) return &rule;
    }
    return nullptr;
  }

  Pattern include_;
  std::string include_text_;
  std::vector<CompiledRule> rules_;
  std::set<std::string> folders_read_;
  std::map<std::tuple<dev_t, ino_t, std::string>, Source> sources_;  ///< hard links are one file
  Sources result_;
};

}  // namespace

Result<Sources> collect_sources(std::span<const fs::path> inputs, std::string_view include,
                                std::span<const SplitRule> rules) {
  TRAINYARD_ASSIGN(std::vector<CompiledRule> compiled, compile(rules));
  TRAINYARD_ASSIGN(Pattern wanted, compile_expression("include", include));
  Collector collector(std::move(wanted), include, std::move(compiled));
  for (const fs::path& input : inputs)
    TRAINYARD_TRY(collector.add_input(input));
  return std::move(collector).finish();
}

Status read_pieces(const fs::path& path, const std::function<Status(std::string_view)>& take) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return io_error("open " + path.string(), errno);
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::string piece(kPieceBytes, '\0');
  while (true) {
    const ssize_t n = ::read(fd.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("read " + path.string(), errno);
    if (n == 0) return {};
    TRAINYARD_TRY(take(std::string_view(piece).substr(0, static_cast<size_t>(n))));
  }
}

}  // namespace trainyard::data
