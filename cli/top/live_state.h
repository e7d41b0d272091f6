#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "control/coordinator/job_run.h"

/// A run at one moment as RUN/live.json holds it: written about once a second by `trainyard run`,
/// read by `trainyard top`, without either waiting for the other. A view, not the truth: nothing
/// depends on it after a crash.
namespace trainyard::cli {

inline constexpr char kLiveFile[] = "live.json";

struct LiveState : contract::KnownFigures {
  Time at;            ///< when it was written
  int64_t pid = 0;    ///< of the `trainyard run` that wrote it
  bool over = false;  ///< that command has ended; nothing follows
  std::string job_name;
  std::string activity;  ///< "training", "restarting" ... or how it ended
  int64_t generation = 0;
  std::string layout;  ///< how the engine's ranks divide the work; empty: not known
  int64_t pipeline_stages = 1;
  int64_t step = 0;
  int64_t total_steps = 0;
  int64_t expected_ranks = 0;
  std::optional<double> eta_s;
  std::optional<double> goodput;  ///< productive by wall time
  double wall_s = 0;
  int64_t checkpoint_step = -1;
  int64_t restarts = 0;
  int64_t lost_steps = 0;
  std::optional<int64_t> slowest_rank;
  std::vector<control::RankReading> ranks;  ///< by rank; of each what a rank row needs
};

/// One line of JSON.
std::string encode_live(const LiveState& state);
/// Members that are not known are ignored. Errors: kInvalidData for what is no live state.
Result<LiveState> decode_live(const std::string& text);

/// Replaces RUN/live.json; not durable. Errors: kIo.
Status write_live(const std::filesystem::path& run_dir, const LiveState& state);
/// Errors: kNotFound where there is none; kInvalidData; kIo.
Result<LiveState> read_live(const std::filesystem::path& run_dir);

}  // namespace trainyard::cli
