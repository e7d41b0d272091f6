#include "common/io/unexpanded.h"

#include <algorithm>

namespace trainyard {
namespace {

/// "s3:" of "s3://bucket", also where the path has been made absolute and lost a slash.
bool is_scheme(const std::string& name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '+';
  };
  return name.size() > 2 && name.back() == ':' &&
         std::all_of(name.begin(), name.end() - 1, is_letter);
}

}  // namespace

std::string unexpanded(const std::filesystem::path& path) {
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    if (name == "~" || name.find('$') != std::string::npos) {
      return "'" + name +
             "' is what a shell expands, but no shell reads this: write the folder in full";
    }
    if (is_scheme(name)) {
      return "'" + name +
             "//' is not a folder on this machine: copy the files to one, or mount them";
    }
  }
  return "";
}

}  // namespace trainyard
