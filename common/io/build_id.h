#pragma once

#include <filesystem>
#include <string>

namespace trainyard {

/// The build ID that the linker has given a program (ELF note NT_GNU_BUILD_ID), in lower-case
/// hexadecimal: programs of one build have one. Empty: it has none, or is no 64-bit ELF file of
/// this byte order.
std::string build_id_of(const std::filesystem::path& program);
/// That of the running program, also where a loader that was named has started it.
std::string own_build_id();

}  // namespace trainyard
