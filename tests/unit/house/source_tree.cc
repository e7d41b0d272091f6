#include "tests/unit/house/source_tree.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace trainyard::house {
namespace {

namespace fs = std::filesystem;

bool is_skipped_directory(const fs::path& path, bool top_level) {
  const std::string name = path.filename().string();
  if (name == ".git" || name == "__pycache__" || name == ".cache") return true;
  return top_level && (name.starts_with("build") || name == "runs");
}

}  // namespace

std::vector<SourceFile> read_source_tree(std::string_view root) {
  std::vector<SourceFile> files;
  auto walk = fs::recursive_directory_iterator(fs::path(root));
  for (auto it = fs::begin(walk); it != fs::end(walk); ++it) {
    if (it->is_directory()) {
      if (is_skipped_directory(it->path(), it.depth() == 0)) it.disable_recursion_pending();
      continue;
    }
    // In a linked worktree .git is a file.
    if (!it->is_regular_file() || it->path().filename() == ".git") continue;
    std::ifstream in(it->path(), std::ios::binary);
    std::string text(it->file_size(), ' ');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(in.gcount()));
    if (text.find('\0') != std::string::npos) continue;
    files.push_back({fs::relative(it->path(), root).generic_string(), std::move(text)});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

bool is_code(std::string_view path) {
  return path.ends_with(".h") || path.ends_with(".cc") || path.ends_with(".cu") ||
         path.ends_with(".cuh");
}

int64_t count_lines(std::string_view text) {
  const int64_t newlines = std::count(text.begin(), text.end(), '\n');
  return newlines + (text.empty() || text.back() == '\n' ? 0 : 1);
}

}  // namespace trainyard::house
