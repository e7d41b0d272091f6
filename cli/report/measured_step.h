#pragma once

#include <filesystem>

#include "cli/report/timeline.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// Rows that a measured picture has at most: of more ranks the lowest are drawn.
inline constexpr size_t kMeasuredRowsMax = 64;

/// The newest step that all ranks of a merged trace (docs/formats/trace.md) have whole: from the
/// first pass of any rank to the last. A rank waits wherever no pass of its runs: for messages, for
/// collectives, for data. Errors: kNotFound where there is no such step; kInvalidData; kIo.
Result<Timeline> measured_step(const std::filesystem::path& trace_file);

}  // namespace trainyard::cli
