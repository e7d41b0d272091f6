#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "cli/numerics_view.h"
#include "cli/output.h"
#include "cli/plan_view.h"
#include "cli/report/bars.h"
#include "cli/run/format.h"
#include "common/api/enum_names.h"
#include "common/text/quantity.h"

namespace trainyard::cli {
namespace {

constexpr size_t kColumns = 100;

/// A row of the table: a name and a cell for each stage.
template <typename Cell>
std::string row(const std::string& name, const JobPlan& job, const Cell& cell) {
  std::string line = fmt::format("{:<22}", name);
  for (const StagePlan& stage : job.stages)
    line += fmt::format("{:>17}", stage.plan ? cell(*stage.plan) : std::string("-"));
  return line + "\n";
}

std::string decimal_text(double value, const char* unit) {
  constexpr std::array<const char*, 7> kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t prefix = 0;
  for (; value >= 1000 && prefix + 1 < kPrefixes.size(); ++prefix)
    value /= 1000;
  return fmt::format("{:.{}f} {}{}", value, prefix == 0 ? 0 : 2, kPrefixes[prefix], unit);
}

/// What the rank that computes most computes, as a multiple of the mean.
double imbalance(const engine::MemoryPlan& plan, const std::vector<double>& shares) {
  const layout::StageMap& stages = plan.stages();
  std::vector<double> by_rank(static_cast<size_t>(stages.ranks()));
  for (int stage = 0; stage < stages.size(); ++stage)
    by_rank[static_cast<size_t>(stages.pp_of(stage))] += shares[static_cast<size_t>(stage)];
  return *std::max_element(by_rank.begin(), by_rank.end()) * stages.ranks();
}

/// A row of the largest rank's bytes, by one of MemoryPlan's functions.
std::string size_row(const std::string& name, const JobPlan& job,
                     int64_t (engine::MemoryPlan::*bytes)(int rank) const) {
  return row(name, job, [bytes](const engine::MemoryPlan& plan) {
    return text::size_text((plan.*bytes)(plan.largest_rank()));
  });
}

/// All but states in memory, where a job keeps none.
std::vector<engine::MemoryPurpose> shown_purposes(const JobPlan& job) {
  const bool keeps = std::any_of(job.stages.begin(), job.stages.end(), [](const auto& stage) {
    return stage.plan && stage.plan->largest().of(engine::MemoryPurpose::kStates) > 0;
  });
  std::vector<engine::MemoryPurpose> shown;
  for (size_t i = 0; i < engine::kMemoryPurposes; ++i) {
    const auto purpose = static_cast<engine::MemoryPurpose>(i);
    if (keeps || purpose != engine::MemoryPurpose::kStates) shown.push_back(purpose);
  }
  return shown;
}

const char* driver_words(const JobPlan& job) {
  const engine::MemoryPlan& plan = job.own_plan();
  return plan.nccl_bytes(plan.largest_rank()) > 0 ? "driver and NCCL" : "driver";
}

/// The largest rank's bytes by purpose, and their sums by memory.
std::string memory_rows(const JobPlan& job) {
  const bool on_gpu = job.spec.device == api::DeviceKind::kCuda;
  std::string text;
  bool is_first_of_host = on_gpu;
  for (const engine::MemoryPurpose purpose : shown_purposes(job)) {
    if (!is_on_device(purpose) && std::exchange(is_first_of_host, false)) {
      text +=
          size_row(std::string("  ") + driver_words(job), job, &engine::MemoryPlan::driver_bytes);
      text += size_row("total on its GPU", job, &engine::MemoryPlan::whole_gpu_bytes);
    }
    text += row("  " + std::string(name_of(purpose)), job, [&](const engine::MemoryPlan& plan) {
      return text::size_text(plan.largest().of(purpose));
    });
  }
  if (on_gpu) text += size_row("  pinned for copies", job, &engine::MemoryPlan::pinned_bytes);
  return text +
         size_row(on_gpu ? "total on its host" : "total", job, &engine::MemoryPlan::host_bytes);
}

/// Whether this machine's memory holds the job, and what GPUs have to.
std::string verdict_of(const JobPlan& job) {
  const std::string verdict = job.doubt.empty()
                                  ? "fits, " + text::size_text(job.room.bytes) + " available"
                                  : "does not fit: " + job.doubt;
  if (job.spec.device != api::DeviceKind::kCuda) return verdict;
  const engine::MemoryPlan& plan = job.own_plan();
  return verdict + "; each rank also needs a GPU with " +
         text::size_text(plan.whole_gpu_bytes(plan.largest_rank()));
}

}  // namespace

std::vector<int64_t> blocks_of(const layout::StageMap& stages) {
  std::vector<int64_t> blocks;
  for (int stage = 0; stage < stages.size(); ++stage) {
    const bool ends = stage + 1 == stages.size();
    blocks.push_back(stages.layers(stage).size() - (stage == 0 ? 1 : 0) - (ends ? 1 : 0));
  }
  return blocks;
}

std::vector<double> shares_of(const engine::MemoryPlan& plan) {
  std::vector<double> shares;
  for (int stage = 0; stage < plan.stages().size(); ++stage) {
    const engine::OpFlops flops = plan.flops_of_stage(stage);
    shares.push_back(
        static_cast<double>(flops.forward + flops.backward_input + flops.backward_weight));
  }
  const double all = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares)
    share /= all;
  return shares;
}

std::string cut_text(const engine::MemoryPlan& plan) {
  const std::vector<int64_t> blocks = blocks_of(plan.stages());
  if (blocks.size() == 1) return "";
  const std::vector<double> shares = shares_of(plan);
  std::string cut;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    cut +=
        fmt::format("{}{} ({:.0f} %)", stage == 0 ? "" : " + ", blocks[stage], 100 * shares[stage]);
  }
  const api::ParallelismSpec& parallelism = plan.setup().spec.parallelism;
  return fmt::format(
      "pipeline, {}: {} blocks, cut {}; the part of a step's FLOPs includes the head's, which "
      "the last stage computes; the busiest rank computes {:.2f} times the mean",
      api::name_of(parallelism.pipeline_schedule), cut,
      parallelism.stages.empty() ? "by cost" : "by hand", imbalance(plan, shares));
}

std::string plan_text(const JobPlan& job) {
  const engine::MemoryPlan& own = job.own_plan();
  const api::BatchSpec& batch = job.spec.batch;
  std::string text = fmt::format(
      "{}: {} parameters, {}, {}: {}\n{} sequences of {} tokens per step, {} at once\n"
      "states at {} B per parameter, not divided: {}\n",
      job.name, grouped(own.parameters()), api::name_of(job.spec.precision.compute),
      text::counted(job.ranks, "rank"), job.layout, grouped(batch.global_sequences),
      grouped(job.spec.data.sequence_length), batch.micro_sequences, kPublishedStateBytes,
      decimal_text(static_cast<double>(kPublishedStateBytes * own.parameters()), "B"));
  text += wrapped(numerics_text(job.spec, false), kColumns) + "\n";
  if (const std::string cut = cut_text(own); !cut.empty()) text += wrapped(cut, kColumns) + "\n";
  text += fmt::format("{:<22}", "largest rank");
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    const char* const mark = static_cast<int>(stage) == job.own() ? "*" : "";
    text += fmt::format("{:>17}", fmt::format("ZeRO {}{}", stage, mark));
  }
  text += "\n";
  text += memory_rows(job);
  text += row("sent per step", job, [](const engine::MemoryPlan& plan) {
    return decimal_text(static_cast<double>(plan.step_of(plan.largest_rank()).bytes_sent), "B");
  });
  text += row("computed per step", job, [](const engine::MemoryPlan& plan) {
    return decimal_text(static_cast<double>(plan.step_of(plan.largest_rank()).flops), "FLOP");
  });
  if (job.spec.parallelism.recompute != api::Recompute::kNone) {
    text += row("computed again", job, [](const engine::MemoryPlan& plan) {
      return decimal_text(static_cast<double>(plan.step_of(plan.largest_rank()).recompute_flops),
                          "FLOP");
    });
  }
  text += row("rank", job,
              [](const engine::MemoryPlan& plan) { return std::to_string(plan.largest_rank()); });
  if (job.spec.data.documents == api::Documents::kIsolate) {
    text += wrapped(
        "data.documents: Isolate: the computation shown is an upper bound. Attention is counted "
        "over whole sequences; tokens attend only to their own document, whose length is not known "
        "here",
        kColumns);
  }
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    if (!job.stages[stage].plan) {
      text += fmt::format("ZeRO {}: {}\n", stage, job.stages[stage].refusal);
    }
  }
  if (!job.sharding_doubt.empty()) text += wrapped("warning: " + job.sharding_doubt, kColumns);
  text += "\n" + wrapped("this machine: " + verdict_of(job), kColumns);
  if (!job.pod_limit) return text;
  return text + wrapped("its pods: " + (job.pod_doubt.empty() ? "fit into their limit of memory, " +
                                                                    text::size_text(*job.pod_limit)
                                                              : "do not fit: " + job.pod_doubt),
                        kColumns);
}

std::string plan_svg(const JobPlan& job) {
  constexpr double kGiB = 1 << 30;
  const bool on_gpu = job.spec.device == api::DeviceKind::kCuda;
  BarChart chart{.title = job.name + " on " + text::counted(job.ranks, "rank") + ", largest rank" +
                          (on_gpu ? "'s GPU" : ""),
                 .unit = "GiB",
                 .layers = {},
                 .bars = {}};
  std::vector<engine::MemoryPurpose> purposes = shown_purposes(job);
  if (on_gpu) std::erase_if(purposes, [](auto purpose) { return !is_on_device(purpose); });
  for (const engine::MemoryPurpose purpose : purposes)
    chart.layers.emplace_back(name_of(purpose));
  if (on_gpu) chart.layers.emplace_back(driver_words(job));
  for (size_t stage = 0; stage < job.stages.size(); ++stage) {
    const auto& planned = job.stages[stage].plan;
    if (!planned) continue;
    BarChart::Bar bar{.label = "ZeRO " + std::to_string(stage),
                      .marked = static_cast<int>(stage) == job.own()};
    for (const engine::MemoryPurpose purpose : purposes)
      bar.values.push_back(static_cast<double>(planned->largest().of(purpose)) / kGiB);
    if (on_gpu) {
      bar.values.push_back(static_cast<double>(planned->driver_bytes(planned->largest_rank())) /
                           kGiB);
    }
    chart.bars.push_back(std::move(bar));
  }
  return render_bars(chart);
}

}  // namespace trainyard::cli
