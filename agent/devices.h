#pragma once

#include <filesystem>

namespace trainyard::agent {

/// Accelerators that this container may use: the kernel's files of Nvidia's (`nvidia0`,
/// `nvidia1` ...) in `folder`, of which a container has those that were given to it. 0 where there
/// are none.
int count_devices(const std::filesystem::path& folder = "/dev");

}  // namespace trainyard::agent
