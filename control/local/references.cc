#include "control/local/references.h"

namespace trainyard::control::local {

std::string expand_references(std::string_view text,
                              const std::map<std::string, std::string>& variables) {
  std::string expanded;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    expanded += text.substr(0, dollar);
    if (dollar == std::string_view::npos) break;
    text.remove_prefix(dollar);
    const size_t end = text.starts_with("$(") ? text.find(')') : std::string_view::npos;
    if (end != std::string_view::npos) {
      const auto variable = variables.find(std::string(text.substr(2, end - 2)));
      expanded += variable == variables.end() ? text.substr(0, end + 1) : variable->second;
      text.remove_prefix(end + 1);
    } else {
      expanded += '$';
      text.remove_prefix(text.starts_with("$$") ? 2 : 1);
    }
  }
  return expanded;
}

}  // namespace trainyard::control::local
