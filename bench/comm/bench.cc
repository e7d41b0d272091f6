#include "bench/comm/bench.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "bench/comm/raw_pair.h"

namespace trainyard::bench {
namespace {

using comm::Operation;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Enough for a steady median of short operations, few enough of long ones: about 256 MiB moved.
int iterations_for(int64_t bytes) {
  constexpr int64_t kMovedBytes = int64_t{256} << 20;
  return static_cast<int>(std::clamp<int64_t>(kMovedBytes / std::max<int64_t>(bytes, 1), 5, 1000));
}

bool is_raw(const std::string& world) { return world.starts_with("raw"); }

bool is_ours(const std::string& world) { return !is_raw(world) && world != "gloo"; }

bool can_do(const std::string& world, Operation op) {
  return !is_raw(world) || op == Operation::kAllReduce;
}

/// The rounds of one case in one world.
class Rounds {
 public:
  Rounds(World& world, const Case& one, int ranks) : world_(world) {
    row_.world = world.name();
    row_.one = one;
    row_.ranks = ranks;
    row_.checked = world.name() != "gloo";
  }

  /// Errors: of our own worlds; a peer's are its row's.
  Status run(bool first) {
    if (!row_.failed.empty()) return {};
    row_.one.check = first && row_.checked;
    auto samples = world_.run(row_.one);
    if (!samples) {
      if (is_ours(row_.world)) return std::move(samples).error();
      row_.failed = samples.error().message;
      return {};
    }
    double p50 = 0;
    double p99 = 0;
    int64_t sent = 0;
    int64_t expected = 0;
    for (const Sample& sample : *samples) {
      p50 = std::max(p50, sample.p50_us);
      p99 = std::max(p99, sample.p99_us);
      sent += sample.bytes_sent;
      expected += sample.bytes_expected;
      row_.wrong += sample.wrong;
    }
    p50s_.push_back(p50);
    p99s_.push_back(p99);
    row_.bytes_sent = sent;
    row_.bytes_expected = expected;
    return {};
  }

  CommBenchRow finish() {
    if (row_.failed.empty()) {
      row_.p50_us = median(p50s_);
      row_.p99_us = median(p99s_);
    }
    return std::move(row_);
  }

 private:
  World& world_;
  CommBenchRow row_;
  std::vector<double> p50s_;
  std::vector<double> p99s_;
};

/// Leaves of the two raw pairs the one that was faster, as "raw".
void keep_better_raw(std::vector<CommBenchRow>& rows) {
  const auto find = [&](std::string_view world) {
    return std::find_if(rows.begin(), rows.end(),
                        [&](const auto& row) { return row.world == world; });
  };
  const auto kernels = find("raw");
  const auto bounded = find("raw-bounded");
  if (kernels == rows.end() || bounded == rows.end()) return;
  kernels->send_buffer = name_of(SendBuffer::kKernels);
  bounded->send_buffer = name_of(SendBuffer::kBounded);
  const bool bound_is_better =
      bounded->failed.empty() && (!kernels->failed.empty() || bounded->p50_us < kernels->p50_us);
  if (bound_is_better) std::swap(*kernels, *bounded);
  kernels->world = "raw";
  rows.erase(bounded);
}

void add_ratios(std::vector<CommBenchRow>& rows) {
  for (CommBenchRow& row : rows) {
    for (const CommBenchRow& other : rows) {
      if (&row == &other || !row.failed.empty() || !other.failed.empty()) continue;
      if (other.world == "raw") row.raw_over_this = other.p50_us / row.p50_us;
      if (other.world == "gloo") row.gloo_over_this = other.p50_us / row.p50_us;
    }
  }
}

}  // namespace

double CommBenchRow::algbw_GBps() const {
  return p50_us > 0 ? static_cast<double>(one.bytes) / p50_us * 1e-3 : 0;
}

double CommBenchRow::busbw_GBps() const { return algbw_GBps() * bus_factor(one.op, ranks); }

Result<CommBenchResult> run_comm_bench(const CommBenchOptions& options,
                                       const std::function<void(const CommBenchRow&)>& on_row) {
  CommBenchResult result;
  std::vector<std::unique_ptr<World>> worlds;
  std::vector<std::string> names = options.worlds;
  if (options.raw) names.insert(names.end(), {"raw", "raw-bounded"});
  for (const std::string& name : names) {
    TRAINYARD_ASSIGN(auto world,
                     start_world(name, {options.member_command, options.ranks, options.ring}));
    worlds.push_back(std::move(world));
  }
  if (options.peer_python.empty()) {
    result.peer_note = "peer not measured: give --peer-python a Python that has torch";
  } else if (auto gloo = start_gloo(options.peer_python, options.ranks)) {
    worlds.push_back(*std::move(gloo));
  } else {
    result.peer_note = "peer not measured: " + gloo.error().message;
  }
  for (const Operation op : options.ops) {
    int64_t bytes = op == Operation::kBarrier ? 0 : options.min_bytes;
    while (true) {
      Case one{op, bytes / size_of(options.dtype) * size_of(options.dtype), options.dtype,
               options.reduce};
      one.iterations = options.iterations > 0 ? options.iterations : iterations_for(bytes);
      one.warm_up = one.iterations / 5 + 2;
      std::vector<Rounds> rounds;
      for (const auto& world : worlds) {
        if (can_do(world->name(), op)) rounds.emplace_back(*world, one, options.ranks);
      }
      for (int round = 0; round < options.rounds; ++round) {
        for (Rounds& of_world : rounds)
          TRAINYARD_TRY(of_world.run(round == 0));
      }
      std::vector<CommBenchRow> rows;
      for (Rounds& of_world : rounds)
        rows.push_back(of_world.finish());
      keep_better_raw(rows);
      add_ratios(rows);
      for (CommBenchRow& row : rows) {
        if (is_ours(row.world) && !row.right()) ++result.faulty;
        on_row(row);
        result.rows.push_back(std::move(row));
      }
      if (op == Operation::kBarrier || bytes >= options.max_bytes) break;
      bytes = std::min(bytes * options.factor, options.max_bytes);
    }
  }
  return result;
}

}  // namespace trainyard::bench
