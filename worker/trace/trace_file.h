#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/trace/overlap.h"
#include "worker/trace/recorder.h"

/// Traces on disk: the Trace Event Format of Chrome and Perfetto ("JSON Object Format", complete
/// events), one event a line. Format and meaning: docs/formats/trace.md.
namespace trainyard::trace {

/// Whose spans a file holds.
struct TraceOwner {
  int rank = 0;
  int64_t generation = 0;
};

/// What a trace says of one rank.
struct RankTrace {
  int rank = 0;
  int64_t steps = 0;  ///< whole steps in it
  Overlap overlap;    ///< of the data group's collectives
};

/// The traces of all ranks of one generation in one file.
struct MergedTrace {
  std::filesystem::path file;
  int64_t generation = 0;
  std::vector<RankTrace> ranks;  ///< by rank
};

/// Name of a rank's file: "g3-rank-0.json".
std::string rank_trace_name(const TraceOwner& owner);

/// Writes `spans` into `directory`, which is made. Errors: kIo.
Status write_rank_trace(const std::filesystem::path& directory, const TraceOwner& owner,
                        const Spans& spans);

/// Puts the ranks' files of the newest generation in `directory` together as `file`, one process a
/// rank; all ranks of a machine share one clock, so nothing is shifted. Files that cannot be read
/// are left out and named in `notes`. Errors: kNotFound when no rank has written one; kIo.
Result<MergedTrace> merge_traces(const std::filesystem::path& directory,
                                 const std::filesystem::path& file,
                                 std::vector<std::string>* notes);

}  // namespace trainyard::trace
