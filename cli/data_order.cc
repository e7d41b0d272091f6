#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <map>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "cli/data_subcommands.h"
#include "common/api/engine_spec.h"
#include "common/text/json_writer.h"
#include "worker/data/batch_partition.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"

namespace trainyard::cli {
namespace {

constexpr int64_t kSamplesMax = int64_t{1} << 30;  // a byte each
constexpr int64_t kVisitsMax = int64_t{1} << 33;

struct OrderArguments {
  std::string path;
  int64_t samples = 0;
  int64_t sequence_length = 1024;
  int64_t batch = 64;
  int64_t micro_batch = 1;
  int64_t epochs = 3;
  int64_t seed = api::EngineSpec{}.seed;
  std::vector<int64_t> ranks = {1, 2, 3, 4};
  std::string output = "text";
};

/// One epoch, as the ranks have visited it.
struct EpochVisits {
  int64_t once = 0;
  int64_t more = 0;
  int64_t never = 0;
  int64_t in_place = 0;  ///< at the place that they had in the epoch before
  bool good() const { return more == 0 && never == 0; }
};

Result<int64_t> samples_of(const OrderArguments& arguments) {
  if (arguments.path.empty() == (arguments.samples == 0)) {
    return Error{ErrorCode::kInvalidConfig,
                 "data order: wanted either a folder of shards or --samples N"};
  }
  int64_t samples = arguments.samples;
  if (samples == 0) {
    const std::vector<std::string> paths = {arguments.path};
    TRAINYARD_ASSIGN(const data::TokenSet set,
                     data::TokenSet::open(std::span<const std::string>(paths)));
    samples = set.samples(arguments.sequence_length);
    if (samples == 0) {
      return Error{ErrorCode::kInvalidConfig,
                   arguments.path + ": found " + std::to_string(set.tokens()) +
                       " tokens, too few for a sample of --sequence-length " +
                       std::to_string(arguments.sequence_length) + "; choose a shorter length"};
    }
  }
  if (samples > kSamplesMax || samples > kVisitsMax / arguments.epochs) {
    return Error{ErrorCode::kInvalidConfig,
                 "data order: found " + std::to_string(samples) + " samples in " +
                     std::to_string(arguments.epochs) + " epochs, wanted at most " +
                     std::to_string(kSamplesMax) + " samples and " + std::to_string(kVisitsMax) +
                     " visits; choose longer sequences or fewer epochs"};
  }
  return samples;
}

/// Walks every micro-batch of every rank, as their loaders do, while the number of ranks changes
/// with each step.
std::vector<EpochVisits> visit(const OrderArguments& arguments, int64_t samples) {
  const data::Sampler sampler(static_cast<uint64_t>(arguments.seed), samples);
  const int64_t end = samples * arguments.epochs;
  std::vector<EpochVisits> epochs(static_cast<size_t>(arguments.epochs));
  std::map<int64_t, std::vector<uint8_t>> open;  // visits by epoch: a batch may reach into the next
  const auto close = [&](int64_t epoch) {
    EpochVisits& visits = epochs[static_cast<size_t>(epoch)];
    std::vector<uint8_t>& seen = open[epoch];
    seen.resize(static_cast<size_t>(samples));  // where nothing was visited, too
    for (const uint8_t count : seen)
      ++(count == 0 ? visits.never : count == 1 ? visits.once : visits.more);
    open.erase(epoch);
  };
  const auto take = [&](int64_t ordinal) {
    if (ordinal >= end) return;
    const int64_t at = ordinal / samples;
    const int64_t sample = sampler.sample_at(ordinal);
    std::vector<uint8_t>& seen = open[at];
    seen.resize(static_cast<size_t>(samples));
    uint8_t& count = seen[static_cast<size_t>(sample)];
    count = static_cast<uint8_t>(std::min(count + 1, 2));
    if (at > 0 && sampler.permute(at - 1, ordinal % samples) == sample)
      ++epochs[static_cast<size_t>(at)].in_place;
  };
  int64_t epoch = 0;
  for (int64_t step = 0; epoch < arguments.epochs; ++step) {
    const int64_t ranks = arguments.ranks[static_cast<size_t>(step) % arguments.ranks.size()];
    const data::BatchPartition partition{arguments.batch, arguments.micro_batch, ranks};
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (int64_t index = 0; index < partition.micro_batches(rank); ++index) {
        const layout::Range range = partition.micro_batch(rank, index);
        for (int64_t i = range.begin; i < range.end; ++i)
          take(step * arguments.batch + i);
      }
    }
    while (epoch < arguments.epochs && (step + 1) * arguments.batch >= (epoch + 1) * samples)
      close(epoch++);
  }
  return epochs;
}

void print_text(const OrderArguments& arguments, int64_t samples,
                const std::vector<EpochVisits>& epochs, std::ostream& out) {
  out << samples << " samples, batches of " << arguments.batch << ", ranks by step: ";
  for (size_t i = 0; i < arguments.ranks.size(); ++i)
    out << (i == 0 ? "" : ", ") << arguments.ranks[i];
  out << ", then the same again\n" << std::right << std::setw(5) << "EPOCH";
  for (const char* head : {"ONCE", "TWICE OR MORE", "NEVER", "IN THE SAME PLACE"})
    out << "  " << std::setw(17) << head;
  out << '\n';
  for (size_t i = 0; i < epochs.size(); ++i) {
    out << std::setw(5) << i;
    for (const int64_t count : {epochs[i].once, epochs[i].more, epochs[i].never})
      out << "  " << std::setw(17) << count;
    out << "  " << std::setw(17) << (i == 0 ? "-" : std::to_string(epochs[i].in_place)) << '\n';
  }
  out << "expected: each sample once in every epoch, about one in the same place by chance\n";
}

std::string as_json(int64_t samples, const std::vector<EpochVisits>& epochs) {
  text::JsonWriter json(2);
  const auto integer = [&](const char* name, int64_t value) {
    json.key(name);
    json.integer(value);
  };
  json.begin_object();
  integer("samples", samples);
  json.key("epochs");
  json.begin_array();
  for (const EpochVisits& visits : epochs) {
    json.begin_object();
    integer("once", visits.once);
    integer("twiceOrMore", visits.more);
    integer("never", visits.never);
    integer("inTheSamePlace", visits.in_place);
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.take();
}

Status run_order(const OrderArguments& arguments, CommandContext& context) {
  TRAINYARD_ASSIGN(const int64_t samples, samples_of(arguments));
  const std::vector<EpochVisits> epochs = visit(arguments, samples);
  if (arguments.output == "json")
    context.out << as_json(samples, epochs) << '\n';
  else
    print_text(arguments, samples, epochs, context.out);
  const auto bad = std::find_if(epochs.begin(), epochs.end(),
                                [](const EpochVisits& visits) { return !visits.good(); });
  if (bad == epochs.end()) return {};
  return Error{ErrorCode::kInternal, "epoch " + std::to_string(bad - epochs.begin()) +
                                         ": not every sample was visited once; please report it"};
}

}  // namespace

void register_data_order(const Command& parent, CommandContext& context) {
  const Command command =
      parent.command("order", "Counts how often ranks visit each sample in each epoch.");
  auto arguments = std::make_shared<OrderArguments>();
  command.option("PATH", arguments->path, "Folder of shards, or shard");
  command.option("--samples", arguments->samples, "Number of samples, instead of PATH")
      .between(1, kSamplesMax);
  command.option("--sequence-length", arguments->sequence_length, "Tokens per sample")
      .between(1, 1 << 20)
      .show_default();
  command.option("--batch", arguments->batch, "Samples per step, in all ranks together")
      .between(1, 1 << 24)
      .show_default();
  command.option("--micro-batch", arguments->micro_batch, "Samples per micro-batch")
      .between(1, 1 << 24)
      .show_default();
  command.option("--epochs", arguments->epochs, "Number of epochs")
      .between(1, 1 << 20)
      .show_default();
  command.option("--seed", arguments->seed, "engine.seed of the job")
      .between(0, INT64_MAX)
      .show_default();
  command
      .option("--ranks", arguments->ranks,
              "Numbers of ranks in steps 0, 1, 2 and so on; the list repeats")
      .separated_by(',')
      .between(1, 1 << 20)
      .show_default();
  command.output(arguments->output);
  command.runs(
      [arguments, &context] { finish(run_order(*arguments, context), "trainyard data", context); });
}

}  // namespace trainyard::cli
