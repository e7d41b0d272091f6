#pragma once

#include <string>

namespace trainyard::agent {

/// Equal for processes that can share memory and files: the kernel's boot id and this process's
/// mount namespace. Where neither can be read, unique to the process, so that nobody shares.
std::string host_id();

}  // namespace trainyard::agent
