#pragma once

#include <string_view>

namespace trainyard::agent {

/// The program of agent/starter.cc as it was built with this one, ready to be written to a file.
std::string_view starter_bytes();

}  // namespace trainyard::agent
