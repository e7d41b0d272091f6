#include "worker/data/sources.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <set>
#include <system_error>
#include <unistd.h>

#include "common/base/unique_fd.h"
#include "common/text/utf8.h"
#include "worker/data/pattern.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSourcesMax = 10'000'000;
constexpr size_t kPieceBytes = size_t{1} << 20;

Error list_error(const fs::path& path, const std::error_code& code) {
  return {ErrorCode::kIo, "list " + path.string() + ": " + code.message()};
}

// The regular files below a folder whose names match, in the order of their names.
Result<std::vector<fs::path>> files_below(const fs::path& folder, const Pattern& include) {
  std::error_code code;
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    if (!entry->is_regular_file(code)) continue;
    if (!include.found_in(entry->path().filename().string())) continue;
    files.push_back(entry->path());
    if (files.size() > kSourcesMax) {
      return Error{ErrorCode::kInvalidConfig,
                   folder.string() + ": more than " + std::to_string(kSourcesMax) + " files"};
    }
  }
  if (code) return list_error(folder, code);
  // As strings: a path's own order puts folders by component, which people do not expect.
  std::ranges::sort(files, {}, [](const fs::path& path) { return path.generic_string(); });
  return files;
}

bool is_split_name(std::string_view name) {
  const auto is_lower = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto is_inner = [&](char c) {
    return is_lower(c) || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= 32 && is_lower(name[0]) &&
         std::ranges::all_of(name, is_inner) && name != "train";
}

/// Records of names are JSON, which holds no other text: what is not UTF-8 becomes U+FFFD.
std::string readable_name(std::string_view name) {
  std::string readable;
  for (size_t at = 0; at < name.size();) {
    const int length = text::utf8_length_at(name, at);
    readable += length > 0 ? name.substr(at, static_cast<size_t>(length)) : "\xEF\xBF\xBD";
    at += static_cast<size_t>(std::max(1, length));
  }
  return readable;
}

struct CompiledRule {
  std::string name;
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
    Result<Pattern> pattern = Pattern::compile(rule.pattern);
    if (!pattern) return pattern.error().with_context("split " + rule.name);
    compiled.push_back({rule.name, *std::move(pattern)});
  }
  return compiled;
}

}  // namespace

Result<std::vector<Source>> collect_sources(std::span<const fs::path> inputs,
                                            std::string_view include,
                                            std::span<const SplitRule> rules) {
  TRAINYARD_ASSIGN(std::vector<CompiledRule> compiled, compile(rules));
  Result<Pattern> wanted = Pattern::compile(include);
  if (!wanted) return wanted.error().with_context("include");

  std::vector<Source> sources;
  std::set<std::string> seen;
  const auto add = [&](const fs::path& path, const std::string& name) -> Status {
    std::error_code code;
    const fs::path real = fs::canonical(path, code);
    if (code) return list_error(path, code);
    if (!seen.insert(real.string()).second) {
      return Error{ErrorCode::kInvalidConfig, path.string() + ": given twice"};
    }
    Source source{path, readable_name(name), "train", 0};
    source.bytes = static_cast<int64_t>(fs::file_size(path, code));
    if (code) return list_error(path, code);
    const std::string file_name = path.filename().string();
    const auto rule = std::ranges::find_if(
        compiled, [&](const CompiledRule& r) { return r.pattern.found_in(file_name); });
    if (rule != compiled.end()) {
      source.split = rule->name;
      rule->caught = true;
    }
    sources.push_back(std::move(source));
    return {};
  };

  for (const fs::path& input : inputs) {
    std::error_code code;
    const fs::file_status status = fs::status(input, code);
    if (!fs::exists(status)) {
      return Error{ErrorCode::kNotFound, input.string() + ": no such file or folder"};
    }
    if (fs::is_regular_file(status)) {
      TRAINYARD_TRY(add(input, input.filename().string()));
      continue;
    }
    if (!fs::is_directory(status)) {
      return Error{ErrorCode::kInvalidData, input.string() + ": neither a file nor a folder"};
    }
    TRAINYARD_ASSIGN(const std::vector<fs::path> files, files_below(input, *wanted));
    if (files.empty()) {
      return Error{ErrorCode::kInvalidConfig, input.string() +
                                                  ": found no file whose name matches '" +
                                                  std::string(include) + "'; change --include"};
    }
    for (const fs::path& file : files)
      TRAINYARD_TRY(add(file, file.lexically_relative(input).generic_string()));
  }
  for (const CompiledRule& rule : compiled) {
    if (rule.caught) continue;
    return Error{ErrorCode::kInvalidConfig, "split " + rule.name +
                                                ": its expression matches none of the " +
                                                std::to_string(sources.size()) + " files left"};
  }
  if (std::ranges::none_of(sources, [](const Source& s) { return s.split == "train"; })) {
    return Error{ErrorCode::kInvalidConfig, "split train: the other splits leave it no file"};
  }
  return sources;
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
