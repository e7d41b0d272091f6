#include "worker/job/ways_out.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/api/enum_names.h"
#include "common/api/job_size.h"
#include "common/api/numerics.h"
#include "common/text/quantity.h"
#include "worker/engine/limits.h"
#include "worker/program/schedules/schedules.h"

namespace trainyard::engine {
namespace {

constexpr int kRanksTried = 1024;

/// What the search may take, and what a plan takes: some, and more for each rank and layer.
constexpr double kSecondsTried = 2;
constexpr double kSecondsPerPlan = 3e-3;
constexpr double kSecondsPerRankAndLayer = 2e-6;
constexpr double kPlansAtLeast = 20;

/// What settings cost, as parts of a step's time. Coarse: what is measured depends on the machine,
/// and only the order counts.
constexpr double kNoCopies = 1e-6;  // a lost pod costs more steps
constexpr double kNoStates = 2e-6;  // restarts take longer
constexpr double kOtherLayout = 1e-5;
/// Moving all parameters once takes as long as computing so many tokens; over a network, so many
/// times as long.
constexpr double kTokensPerMove = 16;
constexpr double kTimesOverNetwork = 50;
/// Starting a micro-batch takes as long as computing so many tokens.
constexpr double kTokensPerStart = 16;
constexpr double kSelective = 0.05;
constexpr double kFull = 2.0 / 9;  // docs/concepts/recomputation.md

double number(int64_t value) { return static_cast<double>(value); }

/// A setting that is not as the user has it.
struct Change {
  std::string field;
  std::string value;
  std::string found;  ///< empty: not told
};

/// A combination of settings of the engine.
struct Way {
  std::vector<Change> changes;
  api::ParallelismSpec parallelism;
  int64_t micro_sequences = 0;
  double cost = 0;

  Way with(std::vector<Change> others) const {
    Way way = *this;
    way.changes.insert(way.changes.end(), others.begin(), others.end());
    return way;
  }
};

/// What a job can do without; its training stays the same.
struct Sparing {
  std::vector<Change> changes;
  bool trace = true;
  bool copies = true;
  bool states = true;
  double cost = 0;
};

/// All combinations of schedule, layout, recomputation and size of micro-batches.
class Ways {
 public:
  explicit Ways(const MemoryPlanSetup& given) : given_(given), spec_(given.spec) {
    spec_.data.tokens.clear();  // may be many
    ways_.push_back({.parallelism = given.spec.parallelism,
                     .micro_sequences = given.spec.batch.micro_sequences});
    // What a GPU's host holds does not depend on the others.
    const bool on_host = given.spec.device != api::DeviceKind::kCuda;
    if (on_host) also("pipelineSchedule", [this](const Way& way) { return schedules(way); });
    also("zeroStage", [this](const Way& way) { return layouts(way); });
    if (on_host) also("microSequences", [this](const Way& way) { return micro_batches(way); });
    if (on_host) also("recompute", [this](const Way& way) { return recomputing(way); });
    for (Way& way : ways_)
      way.cost += cost_of(way);
  }

  const std::vector<Way>& all() const { return ways_; }
  /// "zeroStage, microSequences or recompute": the fields that have other values.
  const std::vector<std::string>& varied() const { return varied_; }

 private:
  template <class Others>
  void also(const char* field, const Others& others) {
    const size_t before = ways_.size();
    for (size_t i = 0; i < before; ++i) {
      std::vector<Way> more = others(ways_[i]);
      ways_.insert(ways_.end(), more.begin(), more.end());
    }
    if (ways_.size() > before) varied_.emplace_back(field);
  }

  /// 1F1B has no more micro-batches in flight than any other but Naive, which has one.
  std::vector<Way> schedules(const Way& way) const {
    const api::ParallelismSpec& given = way.parallelism;
    std::vector<Way> others;
    for (const api::PipelineSchedule schedule :
         {api::PipelineSchedule::kOneFOneB, api::PipelineSchedule::kNaive}) {
      if (given.pipeline == 1 || given.pipeline_schedule == schedule ||
          given.pipeline_schedule == api::PipelineSchedule::kNaive)
        continue;
      std::vector<Change> changes = {{"engine.parallelism.pipelineSchedule",
                                      std::string(api::name_of(schedule)),
                                      std::string(api::name_of(given.pipeline_schedule))}};
      const bool has_chunks = given.chunks_per_stage > 1;
      if (has_chunks) {
        changes.push_back(
            {"engine.parallelism.chunksPerStage", "1", std::to_string(given.chunks_per_stage)});
      }
      const bool names_stages = has_chunks && !given.stages.empty();
      if (names_stages) {
        changes.push_back(
            {"engine.parallelism.stages", "[]", text::counted(std::ssize(given.stages), "number")});
      }
      Way other = way.with(std::move(changes));
      other.parallelism.pipeline_schedule = schedule;
      other.parallelism.chunks_per_stage = 1;
      if (names_stages) other.parallelism.stages.clear();
      others.push_back(std::move(other));
    }
    return others;
  }

  /// Higher ZeRO stages, with the shard that there is or with one of all data ranks.
  std::vector<Way> layouts(const Way& way) const {
    const api::ParallelismSpec& given = way.parallelism;
    std::vector<Way> others;
    if (given_.mesh.data_ranks() == 1) return others;
    const bool distributed = given.mode == api::ParallelMode::kDistributed;
    std::set<int64_t> shards = {given.shard};
    if (given_.mesh.fsdp < given_.mesh.data_ranks()) shards.insert(0);
    for (const int64_t shard : shards) {
      for (int64_t stage = std::max<int64_t>(1, given.zero_stage); stage <= 3; ++stage) {
        std::vector<Change> changes;
        if (!distributed)
          changes.push_back({"engine.parallelism.mode", "Distributed", "DataParallel"});
        if (shard != given.shard)
          changes.push_back({"engine.parallelism.shard", "0", std::to_string(given.shard)});
        if (stage != given.zero_stage) {
          changes.push_back({"engine.parallelism.zeroStage", std::to_string(stage),
                             std::to_string(given.zero_stage)});
        }
        if (changes.empty()) continue;
        Way other = way.with(std::move(changes));
        other.cost += kOtherLayout;
        other.parallelism.mode = api::ParallelMode::kDistributed;
        other.parallelism.zero_stage = stage;
        other.parallelism.shard = shard;
        others.push_back(std::move(other));
      }
    }
    return others;
  }

  std::vector<Way> recomputing(const Way& way) const {
    const api::Recompute given = way.parallelism.recompute;
    std::vector<Way> others;
    for (const api::Recompute mode : {api::Recompute::kSelective, api::Recompute::kFull}) {
      if (mode <= given) continue;
      others.push_back(way.with({{"engine.parallelism.recompute", std::string(api::name_of(mode)),
                                  std::string(api::name_of(given))}}));
      others.back().parallelism.recompute = mode;
    }
    return others;
  }

  std::vector<Way> micro_batches(const Way& way) {
    auto [sizes, is_new] = sizes_.try_emplace(way.parallelism.pipeline_schedule);
    if (is_new) sizes->second = smaller_sizes(way.parallelism);
    std::vector<Way> others;
    for (const int64_t size : sizes->second) {
      others.push_back(way.with({{"engine.batch.microSequences", std::to_string(size),
                                  std::to_string(way.micro_sequences)}}));
      others.back().micro_sequences = size;
    }
    return others;
  }

  /// A half, a quarter and so on; where the job cannot run with that, the next smaller size with
  /// which it can. The smallest one, too.
  std::set<int64_t> smaller_sizes(const api::ParallelismSpec& parallelism) {
    spec_.parallelism = parallelism;
    const auto is_valid = [this](int64_t size) {
      spec_.batch.micro_sequences = size;
      return check_batch(spec_, given_.mesh.data_ranks()).has_value() &&
             api::numerics_faults(spec_).empty();
    };
    const int64_t given = sequences_at_once(given_.spec.batch.micro_sequences);
    std::set<int64_t> sizes;
    for (int64_t half = given / 2; half >= 1; half /= 2) {
      int64_t size = half;
      while (size > 0 && !is_valid(size))
        --size;
      if (size > 0) sizes.insert(size);
    }
    int64_t smallest = 1;
    while (smallest < given && !is_valid(smallest))
      ++smallest;
    if (smallest < given) sizes.insert(smallest);
    return sizes;
  }

  /// Of a data rank that has most.
  int64_t sequences_at_once(int64_t micro_sequences) const {
    const int64_t ranks = given_.mesh.data_ranks();
    return std::min(micro_sequences, (given_.spec.batch.global_sequences + ranks - 1) / ranks);
  }

  double cost_of(const Way& way) const {
    const double tokens = number(sequences_at_once(way.micro_sequences)) *
                          number(given_.spec.data.sequence_length) / given_.mesh.cp;
    double cost = kTokensPerStart / tokens;
    // From stage 2 on, sums are cut once a micro-batch; at 3 weights are gathered twice.
    const int64_t stage = way.parallelism.zero_stage;
    const double moves = stage < 2 ? 0 : stage == 2 ? 1 : 3;
    const bool on_network = !given_.shares_memory && way.parallelism.shard == 0;
    cost += moves * kTokensPerMove * (on_network ? kTimesOverNetwork : 1) / tokens;
    if (way.parallelism.recompute == api::Recompute::kSelective) cost += kSelective;
    if (way.parallelism.recompute == api::Recompute::kFull) cost += kFull;
    const double bubble = bubble_share(way);
    return cost + bubble / (1 - bubble);
  }

  double bubble_share(const Way& way) const {
    const api::ParallelismSpec& parallelism = way.parallelism;
    layout::StageMap stages{.per_rank = static_cast<int>(parallelism.chunks_per_stage)};
    stages.layer_end.resize(
        static_cast<size_t>(parallelism.pipeline * parallelism.chunks_per_stage));
    api::BatchSpec batch = given_.spec.batch;
    batch.micro_sequences = way.micro_sequences;
    const auto micro_batches =
        static_cast<int>(api::micro_batches_of(batch, given_.mesh.data_ranks()));
    return bubble_of(parallelism.pipeline_schedule, stages, micro_batches, PassTimes{}).share;
  }

  const MemoryPlanSetup& given_;
  api::EngineSpec spec_;                                      // to try sizes with
  std::map<api::PipelineSchedule, std::set<int64_t>> sizes_;  // of micro-batches
  std::vector<Way> ways_;
  std::vector<std::string> varied_;
};

/// The last one goes without all of it.
std::vector<Sparing> sparings(const MemoryPlanSetup& given) {
  std::vector<Sparing> all = {{}};
  if (given.keeps_states && given.ranks_with_copies > 0) {
    all.push_back({.changes = {{"checkpointPolicy.memoryReplicas", "0", ""}},
                   .copies = false,
                   .cost = kNoCopies});
  }
  if (given.keeps_states) {
    all.push_back({.changes = {{"checkpointPolicy.memoryEverySteps", "0", ""}},
                   .states = false,
                   .cost = kNoStates});
  }
  const size_t with_trace = given.trace_ring_bytes > 0 ? all.size() : 0;
  for (size_t i = 0; i < with_trace; ++i) {
    Sparing untraced = all[i];
    untraced.trace = false;
    all.push_back(std::move(untraced));
  }
  return all;
}

/// Plans combinations as the job was planned, so long as that does not take too long.
class Search {
 public:
  Search(const MemoryPlanSetup& given, std::span<const layout::Range> groups,
         const MemoryRoom& room)
      : given_(given), groups_(groups), room_(room) {
    const double seconds = kSecondsPerPlan + kSecondsPerRankAndLayer * given.mesh.size() *
                                                 number(given.spec.model.layers);
    plans_left_ = static_cast<int>(std::max(kPlansAtLeast, kSecondsTried / seconds));
  }

  bool is_over() const { return plans_left_ <= 0; }

  /// Of the group that needs most, where all fit. `is_bound`: as in MemoryPlanSetup.
  std::optional<MemoryNeed> need_of_way(const Way& way, const Sparing& sparing, bool is_bound) {
    MemoryPlanSetup setup = given_;
    setup.spec.parallelism = way.parallelism;
    setup.spec.batch.micro_sequences = way.micro_sequences;
    if (!sparing.trace) setup.trace_ring_bytes = 0;
    if (!sparing.copies) setup.ranks_with_copies = 0;
    if (!sparing.states) setup.keeps_states = false;
    setup.is_bound = is_bound;
    const auto mesh = layout::mesh_of(way.parallelism, setup.mesh.size());
    if (!mesh) return std::nullopt;
    setup.mesh = *mesh;
    --plans_left_;
    const auto plan = MemoryPlan::make(setup);
    if (!plan) return std::nullopt;
    MemoryNeed most;
    for (const layout::Range& ranks : groups_) {
      const MemoryNeed need = need_of(*plan, ranks);
      if (!need.fits(room_)) return std::nullopt;
      if (need.all > most.all) most = need;
    }
    return most;
  }

 private:
  const MemoryPlanSetup& given_;
  const std::span<const layout::Range> groups_;
  const MemoryRoom& room_;
  int plans_left_ = 0;
};

/// "a, b and c".
std::string listed(const std::vector<std::string>& all, const char* last) {
  std::string text;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i > 0) text += i + 1 == all.size() ? last : ", ";
    text += all[i];
  }
  return text;
}

/// "; set a: 1 (found 2), b: 3 (found 4) and c: 0, which needs 1.00 GiB".
std::string text_of(const Way& way, const Sparing& sparing, const MemoryNeed& need) {
  std::vector<std::string> changes;
  for (const std::vector<Change>* part : {&way.changes, &sparing.changes}) {
    for (const Change& change : *part) {
      changes.push_back(change.field + ": " + change.value +
                        (change.found.empty() ? "" : " (found " + change.found + ")"));
    }
  }
  std::string text = sparing.trace ? "; " : "; run without --trace";
  if (!changes.empty()) text += (sparing.trace ? "set " : " and set ") + listed(changes, " and ");
  return text + ", which needs " + text::size_text(need.all);
}

}  // namespace

MemoryNeed need_of(const MemoryPlan& plan, layout::Range ranks) {
  MemoryNeed need;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    const int64_t bytes = plan.host_bytes(static_cast<int>(rank));
    need.all += bytes;
    need.most = std::max(need.most, bytes);
  }
  return need;
}

std::string ways_out(const MemoryPlan& plan, std::span<const layout::Range> groups,
                     const MemoryRoom& room) {
  const MemoryPlanSetup& given = plan.setup();
  if (given.mesh.size() > kRanksTried) {
    return "; use more ranks on more machines (other settings are tried for at most " +
           std::to_string(kRanksTried) + " ranks)";
  }
  const Ways ways(given);
  const std::vector<Sparing> all_sparings = sparings(given);
  std::vector<std::tuple<double, size_t, size_t>> order;  // cost, way, sparing
  for (size_t way = 0; way < ways.all().size(); ++way) {
    for (size_t sparing = 0; sparing < all_sparings.size(); ++sparing)
      order.emplace_back(ways.all()[way].cost + all_sparings[sparing].cost, way, sparing);
  }
  std::sort(order.begin(), order.end());
  Search search(given, groups, room);
  // Most do not fit whatever they spare, and a bound is planned sooner.
  std::vector<std::optional<bool>> may_fit(ways.all().size());
  size_t tried = 0;
  for (const auto& [cost, i, j] : order) {
    if (search.is_over()) break;
    ++tried;
    const Way& way = ways.all()[i];
    const Sparing& sparing = all_sparings[j];
    if (!may_fit[i]) may_fit[i] = search.need_of_way(way, all_sparings.back(), true).has_value();
    if (!*may_fit[i] || !search.need_of_way(way, sparing, true)) continue;
    if (const std::optional<MemoryNeed> need = search.need_of_way(way, sparing, false))
      return text_of(way, sparing, *need);
  }
  const std::string rest = "use a smaller model, or more ranks on more machines";
  if (tried < order.size()) {
    return "; none of the " + std::to_string(tried) + " cheapest combinations of " +
           listed(ways.varied(), " and ") + " fits, and no others were tried: " + rest;
  }
  if (ways.varied().empty()) return "; " + rest;
  return "; no " + listed(ways.varied(), " or ") + " of this model fits: " + rest;
}

}  // namespace trainyard::engine
