#pragma once

#include <filesystem>

#include "agent/bundle_layout.h"
#include "common/base/error.h"

namespace trainyard::agent {

/// Copies the running program, the libraries that it has loaded and the loader that did so into
/// `folder`, which is made where it is missing: what it needs to run in an image that has another
/// libc, or none (docs/adr/0012). There `FOLDER/start -- COMMAND` starts it: the program beside
/// them that keeps from their loader what is meant for the image's (agent/starter.cc). Everybody
/// may read and run the files; older ones of the same names are replaced. Errors: kIo naming the
/// file; kInvalidConfig for a program without a loader.
Status install_bundle(const std::filesystem::path& folder);

}  // namespace trainyard::agent
