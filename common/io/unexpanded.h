#pragma once

#include <filesystem>
#include <string>

namespace trainyard {

/// Why nothing is at `path`, where it holds what a shell or another program would have replaced:
/// "~", "$NAME", "s3://". A clause for the end of a message; empty where it holds nothing such.
std::string unexpanded(const std::filesystem::path& path);

}  // namespace trainyard
