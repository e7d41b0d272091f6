#include "worker/train/preflight.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

#include "common/api/enum_names.h"
#include "common/io/byte_limits.h"
#include "common/io/control_group.h"
#include "common/io/path_exists.h"
#include "worker/data/tokenizer.h"
#include "worker/model/family.h"
#include "worker/train/resolve.h"

namespace trainyard::engine {
namespace {

/// A parameter in a checkpoint: its fp32 master and the two moments of AdamW.
constexpr double kCheckpointBytes = 12;
constexpr double kBytesPerGiB = 1024.0 * 1024 * 1024;

/// What `trainyard sample` reads the model's tokens with must be what they were made with. One that
/// is not on this machine is not looked at: ranks need none.
Status check_tokenizer(const std::string& path, const data::TokenSet& tokens) {
  if (path.empty()) return {};
  const auto tokenizer = data::open_tokenizer(path);
  if (!tokenizer && tokenizer.error().code == ErrorCode::kNotFound) return {};
  if (!tokenizer) return tokenizer.error().with_context("engine.data.tokenizer");
  if ((*tokenizer)->identity() == tokens.tokenizer_hash()) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.data.tokenizer: found " + std::string((*tokenizer)->name()) + " (" +
                   to_hex((*tokenizer)->identity()) + "), wanted the one of engine.data.tokens, " +
                   tokens.tokenizer() + " (" + to_hex(tokens.tokenizer_hash()) + ")"};
}

/// A set of at least one sample.
Status check_samples(const data::TokenSet& tokens, int64_t sequence_length, const char* field) {
  if (tokens.samples(sequence_length) >= 1) return {};
  return Error{ErrorCode::kInvalidConfig,
               "engine.data.sequenceLength: found " + std::to_string(sequence_length) +
                   ", wanted at most " + std::to_string(std::max<int64_t>(0, tokens.tokens() - 1)) +
                   ": " + field + " holds " + std::to_string(tokens.tokens()) +
                   " tokens, and a sample is one token longer than sequenceLength"};
}

double number(int64_t value) { return static_cast<double>(value); }

/// Lower bound of the parameters. In floating point: the product of absurd sizes overflows
/// integers.
double least_parameters(const api::ModelSpec& model) {
  const double hidden = number(model.hidden);
  return (number(model.vocab) + number(model.max_positions)) * hidden +
         number(model.layers) * hidden * (4 * hidden + 2 * number(model.ffn));
}

/// Lower bound of any rank's bytes.
double least_bytes(const api::EngineSpec& spec, int64_t ranks) {
  const api::ModelSpec& model = spec.model;
  const double hidden = number(model.hidden);
  const double parameters = least_parameters(model);
  const bool is_bf16 = spec.precision.compute == api::NumberFormat::kBF16;
  // Sums and weights of everything; moments, and masters beside bf16 weights, of a rank's part.
  const double states = (is_bf16 ? 10 : 12) + (is_bf16 ? 12.0 : 8.0) / number(ranks);
  // Forward keeps at least the inputs of both branches of every layer for backward. A rank's
  // micro-batch is never larger than its share.
  const int64_t sequences =
      std::min(spec.batch.micro_sequences, spec.batch.global_sequences / ranks);
  const double kept = 2 * number(model.layers) * number(sequences) *
                      number(spec.data.sequence_length) * hidden * (is_bf16 ? 2 : 4);
  return parameters * states + kept;
}

/// Of this machine, or what of it a control group leaves us, and of one process of it.
struct Room {
  double machine = 0;
  bool limited = false;
  double process = 0;
};

Room room_here() {
  Room room;
  room.machine =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  // A container's is less: beyond it ranks are killed without a word.
  const auto group = static_cast<double>(group_limits().memory_bytes.value_or(INT64_MAX));
  room.limited = group < room.machine;
  room.machine = std::min(room.machine, group);
  room.process = std::numeric_limits<double>::infinity();
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    room.process = static_cast<double>(limit.rlim_cur);
  }
  return room;
}

std::string gib(double bytes) {
  const double tenths = std::min(bytes / kBytesPerGiB * 10, 1e15);
  const auto whole = static_cast<int64_t>(tenths);
  return std::to_string(whole / 10) + "." + std::to_string(whole % 10) + " GiB";
}

}  // namespace

bool sees_inputs(const api::EngineSpec& spec) {
  const auto there = [](const std::string& path) {
    const Result<bool> exists = path_exists(path);
    return !exists || *exists;  // whoever opens one that may not be looked at says so
  };
  const api::DataSpec& data = spec.data;
  return std::all_of(data.tokens.begin(), data.tokens.end(), there) &&
         std::all_of(data.validation.begin(), data.validation.end(), there) &&
         (spec.model.import_path.empty() || there(spec.model.import_path));
}

Status check_shapes(const api::EngineSpec& spec, int64_t ranks) {
  TRAINYARD_TRY(check_kernel_limits(spec));
  return check_batch(spec.batch, ranks);
}

Status check_inputs(const api::EngineSpec& given, const Inputs& inputs, int64_t ranks) {
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs.tokens, inputs.shape));
  TRAINYARD_TRY(check_tokenizer(spec.data.tokenizer, inputs.tokens));
  TRAINYARD_TRY(check_shapes(spec, ranks));
  TRAINYARD_TRY(build_model(spec.model));
  TRAINYARD_TRY(check_samples(inputs.tokens, spec.data.sequence_length, "engine.data.tokens"));
  if (!inputs.validation) return {};
  TRAINYARD_TRY(check_held_out(*inputs.validation, &inputs.tokens, spec.model.vocab,
                               "engine.data.validation"));
  return check_samples(*inputs.validation, spec.data.sequence_length, "engine.data.validation");
}

Status check_memory(const api::EngineSpec& given, const Inputs& inputs, int64_t ranks) {
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs.tokens, inputs.shape));
  const double rank = least_bytes(spec, std::max<int64_t>(1, ranks));
  const Room room = room_here();
  const double all = rank * static_cast<double>(std::max<int64_t>(1, ranks));
  if (all <= room.machine && rank <= room.process) return {};
  const bool process = rank > room.process;
  return Error{ErrorCode::kInvalidConfig,
               "engine.model: found one that takes at least " + gib(rank) + " a rank, " + gib(all) +
                   " on " + std::to_string(ranks) + " ranks, wanted at most " +
                   (process ? gib(room.process) + " a process (ulimit -v)"
                            : "the " + gib(room.machine) +
                                  (room.limited ? " that a control group limits us to"
                                                : " of this machine")) +
                   "; use a smaller model, smaller micro-batches or fewer ranks here"};
}

Status check_file_size(const api::EngineSpec& given, const Inputs& inputs, int64_t ranks) {
  if (!is_set(kFileSizeLimit)) return {};
  api::EngineSpec spec = given;
  TRAINYARD_TRY(resolve_spec(spec, inputs.tokens, inputs.shape));
  const double shard =
      kCheckpointBytes * least_parameters(spec.model) / number(std::max<int64_t>(1, ranks));
  return check_limit(kFileSizeLimit, shard, " for a rank's part of a checkpoint");
}

Status check_processor(const api::EngineSpec& spec, const kernels::ProcessorFeatures& features) {
  const api::Isa wanted = spec.runtime.isa;
  const auto offered = [&](api::Isa isa) {
    return kernels::is_available(kernel_isa(isa), features);
  };
  if (wanted == api::Isa::kAuto || offered(wanted)) return {};
  std::string others;
  for (const api::Isa isa : {api::Isa::kAvx512, api::Isa::kAvx2, api::Isa::kGeneric}) {
    if (offered(isa)) others += ", " + std::string(api::name_of(isa));
  }
  return Error{ErrorCode::kInvalidConfig, "engine.runtime.isa: found " +
                                              std::string(api::name_of(wanted)) +
                                              ", which this processor does not offer, wanted Auto" +
                                              others + "; all give the same bits"};
}

}  // namespace trainyard::engine
