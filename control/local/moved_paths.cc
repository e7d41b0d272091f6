#include "control/local/moved_paths.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "control/local/job_store.h"

namespace trainyard::control::local {
namespace {

namespace fs = std::filesystem;

fs::path absolute_of(const fs::path& path) {
  std::error_code code;
  fs::path absolute = fs::absolute(path, code).lexically_normal();
  return absolute.has_filename() ? absolute : absolute.parent_path();  // "data/"
}

bool is_around(const fs::path& above, const fs::path& path) {
  return std::mismatch(above.begin(), above.end(), path.begin(), path.end()).first == above.end();
}

/// Whether the folder around both `wanted` and the run directory has been moved or copied from
/// around `stored`: after the names at their end that both paths have alike, that folder is left.
bool has_moved_along(const fs::path& stored, const fs::path& wanted, const fs::path& run_dir) {
  fs::path from = stored;
  fs::path to = wanted;
  while (to.has_filename() && from.filename() == to.filename()) {
    from = from.parent_path();
    to = to.parent_path();
  }
  if (to == wanted || !to.has_filename() || !is_around(to, run_dir)) return false;
  std::error_code code;
  const bool moved = !fs::exists(stored, code);
  return moved || fs::exists(from / run_dir.lexically_relative(to) / kJobFile, code);
}

/// The configuration and the weights of a model folder, by name.
std::map<std::string, uintmax_t> model_files(const fs::path& folder) {
  std::map<std::string, uintmax_t> files;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end;
       entry.increment(code)) {
    const fs::path name = entry->path().filename();
    std::error_code none;
    if (name == "config.json" || name.extension() == ".safetensors")
      files[name.string()] = fs::file_size(entry->path(), none);
  }
  return files;
}

bool same_bytes(const fs::path& a, const fs::path& b) {
  constexpr std::streamsize kPieceBytes = std::streamsize{1} << 20;
  std::ifstream first(a, std::ios::binary);
  std::ifstream second(b, std::ios::binary);
  std::vector<char> left(kPieceBytes);
  std::vector<char> right(kPieceBytes);
  while (first && second) {
    first.read(left.data(), kPieceBytes);
    second.read(right.data(), kPieceBytes);
    if (first.gcount() != second.gcount() ||
        !std::equal(left.begin(), left.begin() + first.gcount(), right.begin())) {
      return false;
    }
  }
  return first.eof() && second.eof();
}

}  // namespace

bool is_same_place(const fs::path& stored, const fs::path& wanted, const fs::path& run_dir) {
  if (stored.empty() || wanted.empty()) return stored == wanted;
  const fs::path from = absolute_of(stored);
  const fs::path to = absolute_of(wanted);
  std::error_code code;
  return from == to || fs::equivalent(from, to, code) ||
         has_moved_along(from, to, absolute_of(run_dir));
}

api::EngineSpec with_stored_paths(const api::EngineSpec& stored, api::EngineSpec wanted,
                                  const fs::path& run_dir) {
  const auto settle = [&](const std::string& from, std::string& to) {
    if (is_same_place(from, to, run_dir)) to = from;
  };
  const auto settle_all = [&](const std::vector<std::string>& from, std::vector<std::string>& to) {
    for (size_t i = 0; i < std::min(from.size(), to.size()); ++i)
      settle(from[i], to[i]);
  };
  settle_all(stored.data.tokens, wanted.data.tokens);
  settle_all(stored.data.validation, wanted.data.validation);
  settle(stored.data.tokenizer, wanted.data.tokenizer);
  settle(stored.model.import_path, wanted.model.import_path);
  if (stored.start_from && wanted.start_from)
    settle(stored.start_from->checkpoint, wanted.start_from->checkpoint);
  settle(stored.export_to.hugging_face, wanted.export_to.hugging_face);
  return wanted;
}

bool may_be_same_import(const fs::path& stored, const fs::path& wanted, const fs::path& run_dir) {
  if (is_same_place(stored, wanted, run_dir)) return true;
  if (stored.empty() || wanted.empty()) return false;
  const auto files = model_files(stored);
  const auto others = model_files(wanted);
  if (files.empty() || others.empty()) return true;
  return files == others && std::ranges::all_of(files, [&](const auto& file) {
           return same_bytes(stored / file.first, wanted / file.first);
         });
}

}  // namespace trainyard::control::local
