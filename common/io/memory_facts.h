#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

/// What the kernel says of memory (proc(5)). Paths are others in tests only. Nothing where the
/// kernel does not say it.
namespace trainyard {

/// Bytes that new programs may take without swapping.
std::optional<int64_t> available_memory(const std::filesystem::path& file = "/proc/meminfo");

/// The most bytes that this process has occupied at a time, less those of mapped files and of
/// memory that it shares now: those are not its own.
std::optional<int64_t> peak_own_memory(const std::filesystem::path& file = "/proc/self/status");

}  // namespace trainyard
