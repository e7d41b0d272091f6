#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/comm/case.h"
#include "bench/comm/world.h"
#include "common/base/error.h"

namespace trainyard::bench {

/// What `trainyard bench comm` measures: every operation at every size in every world, in turns.
struct CommBenchOptions {
  std::vector<std::string> worlds = {"shm", "tcp"};
  std::vector<comm::Operation> ops = {comm::Operation::kAllReduce};
  int64_t min_bytes = 8;
  int64_t max_bytes = int64_t{64} << 20;
  int64_t factor = 8;
  DType dtype = DType::kFloat32;
  comm::ReduceOp reduce = comm::ReduceOp::kSum;
  int rounds = 5;
  int iterations = 0;  ///< a round; 0: as many as fit a size
  int ranks = 2;
  std::vector<int> ring;
  bool raw = false;                         ///< also raw socket pairs (two ranks, all_reduce)
  std::string peer_python;                  ///< also gloo, run by it; empty: not
  std::vector<std::string> member_command;  ///< WorldOptions
};

/// One operation at one size in one world; medians over the rounds of the slowest rank's figures.
struct CommBenchRow {
  std::string world;
  Case one;
  int ranks = 0;
  double p50_us = 0;
  double p99_us = 0;
  int64_t bytes_sent = 0;                ///< over all ranks, one operation
  int64_t bytes_expected = 0;            ///< by the formulas
  int64_t wrong = 0;                     ///< elements, over all ranks
  bool checked = false;                  ///< gloo is only timed
  std::optional<double> raw_over_this;   ///< the raw pair's p50 / this p50
  std::optional<double> gloo_over_this;  ///< gloo's p50 / this p50
  /// Of the raw pair: with which SendBuffer it was faster at this size, whose figures these are.
  std::string send_buffer;
  std::string failed;  ///< why there are no figures (a peer that cannot do it); empty: there are

  /// bytes / p50, in 1e9 bytes a second.
  double algbw_GBps() const;
  /// algbw x bus_factor.
  double busbw_GBps() const;
  bool right() const { return failed.empty() && wrong == 0 && bytes_sent == bytes_expected; }
};

struct CommBenchResult {
  std::vector<CommBenchRow> rows;
  std::string peer_note;  ///< why gloo was not measured; empty where it was
  int faulty = 0;         ///< rows of ours with wrong elements, or bytes unlike the formula
};

/// `on_row` is told each row when its size is done. Errors: a world that does not start or fails.
Result<CommBenchResult> run_comm_bench(const CommBenchOptions& options,
                                       const std::function<void(const CommBenchRow&)>& on_row);

}  // namespace trainyard::bench
