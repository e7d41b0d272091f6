#pragma once

#include <filesystem>

#include "common/base/error.h"

namespace trainyard::agent {

// What install_bundle puts into its folder.
inline constexpr char kBundleLoader[] = "loader";
inline constexpr char kBundleLibraries[] = "lib";
inline constexpr char kBundleProgram[] = "trainyard-agent";

/// Copies the running program, the libraries that it has loaded and the loader that did so into
/// `folder`, which is made where it is missing: what it needs to run in an image that has another
/// libc, or none (docs/adr/0012). There it is started as
/// `FOLDER/loader --inhibit-cache --library-path FOLDER/lib FOLDER/trainyard-agent`. Everybody may
/// read and run the files; older ones of the same names are replaced.
/// Errors: kIo naming the file; kInvalidConfig for a program without a loader.
Status install_bundle(const std::filesystem::path& folder);

}  // namespace trainyard::agent
