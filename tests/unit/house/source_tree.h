#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainyard::house {

/// One text file of the repository.
struct SourceFile {
  std::string path;  ///< relative to the repository's root, with '/'
  std::string text;
};

/// Every regular file of the working tree but what Git ignores by our .gitignore (build folders,
/// runs) and fixtures that are not text; in path order.
std::vector<SourceFile> read_source_tree(std::string_view root);

/// Is this C++ or CUDA (by its suffix)?
bool is_code(std::string_view path);

/// Number of lines, a last one without a newline included.
int64_t count_lines(std::string_view text);

}  // namespace trainyard::house
