#pragma once

#include <string>

#include "common/text/document.h"

namespace trainyard::text {

/// The node as YAML in block style, two spaces a level, that parse_yaml and every YAML reader take
/// for the same tree: keys and strings that could mean something else stand in double quotes; empty
/// lists and mappings are `[]` and `{}`. Ends with a line break. Refused scalars become null.
std::string to_yaml(const Node& node);

}  // namespace trainyard::text
