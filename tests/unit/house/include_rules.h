#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/unit/house/source_tree.h"

/// The layering of docs/ARCHITECTURE.md as data, and a checker over the text of #include lines.
namespace trainyard::house {

/// One #include line.
struct Include {
  int line = 0;
  std::string target;
  bool quoted = false;  ///< "ours" rather than <theirs>
};

/// One broken rule, ready to print: "control/plan.cc:3: includes ...".
using Violation = std::string;

/// The #include lines of a C++ text, in order; commented ones do not count.
std::vector<Include> includes_of(std::string_view text);

/// What one file breaks: rooms it may not look into, libraries that have one owner, includes that
/// are not rooted in the repository. Pure.
std::vector<Violation> check_file(const SourceFile& file);

/// check_file over all code, and the rules that need the whole tree: cpprestsdk in one .cc only,
/// every quoted include names a file that exists (or whose .proto or .in exists). Pure.
std::vector<Violation> check_tree(const std::vector<SourceFile>& files);

}  // namespace trainyard::house
