#include "worker/train/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "common/base/check.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/model/initialize.h"
#include "worker/program/checker.h"
#include "worker/program/lower.h"
#include "worker/train/resolve.h"

namespace trainyard::engine {
namespace {

/// Micro-batches of an evaluation that are planned together: a plan takes some ten kilobytes for
/// each, and held-out sets have millions.
constexpr size_t kEvaluatedAtOnce = 64;

DType compute_type(api::NumberFormat format) {
  return format == api::NumberFormat::kBF16 ? DType::kBFloat16 : DType::kFloat32;
}

double mean_loss(const ControlWord& control) {
  // A loss that is not finite or too large counts as nothing in the sums: their mean would flatter.
  // Of more targets than the sums are made for they may have wrapped.
  if (control.loss_unknown != 0 || control.targets > kernels::kLossesMax) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (control.targets == 0) return 0;
  return loss_total(control) / static_cast<double>(control.targets);
}

/// Hands out one micro-batch: the prompt of next_logits.
class OneBatch final : public MicroBatchSource {
 public:
  explicit OneBatch(const MicroBatchView& batch) : batch_(batch) {}
  Result<MicroBatchView> micro_batch(int) override { return batch_; }

 private:
  MicroBatchView batch_;
};

}  // namespace

std::vector<int64_t> micro_batch_sizes(int64_t global_sequences, int64_t micro_sequences, int ranks,
                                       int d) {
  std::vector<int64_t> sizes;
  int64_t left = layout::even_share(global_sequences, ranks, d).size();
  for (; left > 0; left -= sizes.back())
    sizes.push_back(std::min(left, micro_sequences));
  return sizes;
}

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineSetup& setup, MemorySource& memory) {
  auto engine = std::unique_ptr<Engine>(new Engine(setup));
  const api::EngineSpec& spec = engine->setup_.spec;
  TRAINYARD_ASSIGN(engine->model_, make_gpt2(setup.model));
  TRAINYARD_TRY(check_kernel_limits(spec));
  engine->memory_source_ = &memory;
  engine->compute_ = compute_type(spec.precision.compute);
  TRAINYARD_ASSIGN(engine->kernels_, kernels::make_cpu_kernel_set(setup.isa, setup.threads));
  TRAINYARD_ASSIGN(engine->kernel_scratch_, memory.allocate(engine->kernels_->scratch_bytes()));
  engine->kernels_->set_scratch(engine->kernel_scratch_->bytes());

  TRAINYARD_TRY(engine->make_states(memory));
  engine->optimizer_ = std::make_unique<Optimizer>(spec.optimizer, spec.learning_rate_schedule,
                                                   spec.steps, engine->model_);
  Engine* const self = engine.get();
  engine->interpreter_ =
      std::make_unique<Interpreter>(Machine{.model = &engine->model_,
                                            .kernels = engine->kernels_.get(),
                                            .states = engine->states_.get(),
                                            .groups = setup.groups,
                                            .optimizer = engine->optimizer_.get(),
                                            .on_instruction =
                                                [self](int id, const Instruction& instruction) {
                                                  if (self->on_instruction_)
                                                    self->on_instruction_(id, instruction);
                                                },
                                            .on_wait =
                                                [self](bool waits) {
                                                  if (self->on_wait_) self->on_wait_(waits);
                                                },
                                            .spans = setup.spans});
  TRAINYARD_TRY(engine->plan_step(memory));
  return engine;
}

Status Engine::make_states(MemorySource& memory) {
  units_ = make_units(model_, compute_, setup_.unit_bytes);
  std::vector<layout::TensorSpec> tensors;
  for (const ParamSpec& param : model_.params)
    tensors.push_back(param.tensor);
  TRAINYARD_ASSIGN(layout_,
                   layout::Layout::make(std::move(tensors), units_.params, setup_.groups->mesh));
  TRAINYARD_ASSIGN(weights_, Weights::create(layout_, units_, memory));
  TRAINYARD_ASSIGN(states_, States::create(layout_, setup_.groups->data_rank(), *weights_, memory));
  name_order_.resize(model_.params.size());
  std::iota(name_order_.begin(), name_order_.end(), 0);
  std::sort(name_order_.begin(), name_order_.end(), [this](int a, int b) {
    return model_.params[static_cast<size_t>(a)].name() <
           model_.params[static_cast<size_t>(b)].name();
  });
  return {};
}

Status Engine::plan_step(MemorySource& memory) {
  const api::BatchSpec& batch = setup_.spec.batch;
  const int ranks = setup_.groups->data_ranks();
  TRAINYARD_TRY(check_batch(batch, ranks));
  const auto layers = static_cast<int>(model_.layers.size());
  std::vector<StepProgram> programs;
  std::vector<int> micro_batches;
  for (int d = 0; d < ranks; ++d) {
    const auto sizes = micro_batch_sizes(batch.global_sequences, batch.micro_sequences, ranks, d);
    micro_batches.push_back(static_cast<int>(sizes.size()));
    programs.push_back(lower(one_stage_schedule(micro_batches.back()),
                             {.stage_end = {layers}, .unit_ready_layer = units_.ready_layer}));
  }
  TRAINYARD_TRY(check_programs(programs, micro_batches, layers, units_.ready_layer));
  const int rank = setup_.groups->data_rank();
  program_ = std::move(programs[static_cast<size_t>(rank)]);
  micro_sizes_ = micro_batch_sizes(batch.global_sequences, batch.micro_sequences, ranks, rank);
  plan_ = ActivationPlan::make(model_, program_, micro_sizes_, setup_.spec.data.sequence_length,
                               compute_);
  TRAINYARD_ASSIGN(arena_, memory.allocate(plan_.bytes()));
  return {};
}

void Engine::initialize() {
  // Elements are independent of each other, so any cut gives the same bits: every thread takes its
  // part of the rows.
  const int threads = setup_.threads;
  const auto fill = [this, threads](int p, std::span<float> values) -> Status {
    const ParamSpec& param = model_.params[static_cast<size_t>(p)];
    const std::vector<int64_t>& shape = param.tensor.shape;
    const auto fill_part = [&](int thread) {
      const layout::Range rows = layout::even_share(shape[0], threads, thread);
      layout::Slice part{.offset = std::vector<int64_t>(shape.size(), 0), .shape = shape};
      part.offset[0] = rows.begin;
      part.shape[0] = rows.size();
      const int64_t row = param.elements() / shape[0];
      initialize_slice(param, static_cast<uint64_t>(setup_.spec.seed), part,
                       values.subspan(static_cast<size_t>(rows.begin * row),
                                      static_cast<size_t>(rows.size() * row)));
    };
    std::vector<std::jthread> helpers;
    for (int thread = 1; thread < threads; ++thread)
      helpers.emplace_back(fill_part, thread);
    fill_part(0);
    return {};
  };
  TRAINYARD_CHECK(set_parameters(fill).has_value());
}

Status Engine::set_parameters(const FillParameter& fill) {
  TRAINYARD_TRY(settle());   // a gather under way would write over them
  std::vector<float> apart;  // where weights are no fp32
  for (const int param : name_order_) {
    const bool is_fp32 = weights_->dtype(param) == DType::kFloat32;
    if (!is_fp32) apart.resize(static_cast<size_t>(layout_.place(param).size()));
    const std::span<float> values = is_fp32 ? weights_->fp32(param) : std::span<float>(apart);
    TRAINYARD_TRY(fill(param, values));
    if (is_fp32) continue;
    kernels_->cast_to_bf16(values.data(), static_cast<uint16_t*>(weights_->data(param)),
                           static_cast<int64_t>(values.size()));
    const std::span<float> master = states_->master(param);
    std::copy_n(values.begin() + states_->owned(param).begin, master.size(), master.begin());
  }
  return {};
}

StepSetup Engine::base_setup(MicroBatchSource& batches, const StepProgram& program,
                             const ActivationPlan& plan) {
  const api::BatchSpec& batch = setup_.spec.batch;
  const int64_t length = setup_.spec.data.sequence_length;
  const int64_t grain = setup_.spec.numerics.grain_tokens;
  return {.program = &program,
          .plan = &plan,
          .arena = arena_->bytes(),
          .batches = &batches,
          .compute = compute_,
          .seed = static_cast<uint64_t>(setup_.spec.seed),
          .step = steps_done_,
          .grain_tokens = grain,
          .targets_of_step = batch.global_sequences * length,
          .grains_of_step = batch.global_sequences * ((length + grain - 1) / grain)};
}

Result<StepReport> Engine::step(MicroBatchSource& batches, const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kStep, .step = steps_done_});
  StepSetup setup = base_setup(batches, program_, plan_);
  setup.stop_asked = &stop_asked;
  TRAINYARD_ASSIGN(const ControlWord control, interpreter_->run(setup));
  ++steps_done_;
  const kernels::OptimizerScalars& scalars = optimizer_->scalars();
  return StepReport{.loss = mean_loss(control),
                    .gradient_norm = scalars.gradient_norm,
                    .learning_rate = scalars.learning_rate,
                    .skipped = scalars.skip != 0,
                    .stop_requested = control.stop_requested != 0};
}

Status Engine::at_snapshot(const std::function<Status()>& copy) {
  const StepProgram program = {{.kind = InstructionKind::kSnapshot}};
  const MicroBatchView nothing;
  OneBatch none(nothing);
  StepSetup setup = base_setup(none, program, plan_);
  setup.training = false;
  setup.snapshot = copy;
  TRAINYARD_TRY(interpreter_->run(setup));
  return {};
}

Status Engine::grow_arena(int64_t bytes) {
  if (static_cast<int64_t>(arena_->bytes().size()) >= bytes) return {};
  TRAINYARD_ASSIGN(arena_, memory_source_->allocate(bytes));
  return {};
}

Result<EvaluationReport> Engine::evaluate(MicroBatchSource& batches,
                                          std::span<const int64_t> micro_sizes,
                                          const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kEvaluate, .step = steps_done_});
  StepProgram program;
  ActivationPlan plan;
  ControlWord control;
  size_t done = 0;
  while (true) {
    const size_t count = std::min(kEvaluatedAtOnce, micro_sizes.size() - done);
    const bool last = done + count == micro_sizes.size();
    if (done == 0 || last) {  // those between are all alike
      // The ranks' numbers of pieces differ: one sum, at the end.
      program =
          lower(forward_schedule(static_cast<int>(count)),
                {.stage_end = {static_cast<int>(model_.layers.size())}, .reduces_control = last});
      plan = ActivationPlan::make(model_, program, micro_sizes.subspan(done, count),
                                  setup_.spec.data.sequence_length, compute_);
      TRAINYARD_TRY(grow_arena(plan.bytes()));
    }
    StepSetup setup = base_setup(batches, program, plan);
    setup.training = false;
    setup.stop_asked = &stop_asked;
    setup.carried = control;
    setup.first_micro_batch = static_cast<int>(done);
    TRAINYARD_ASSIGN(control, interpreter_->run(setup));
    done += count;
    if (last) break;
  }
  // Where a sum did not fit, what did not is missing in it: the loss would be finite and wrong.
  const double loss =
      control.overflow != 0 ? std::numeric_limits<double>::quiet_NaN() : mean_loss(control);
  return EvaluationReport{.loss = loss, .stop_requested = control.stop_requested != 0};
}

Result<std::span<const float>> Engine::next_logits(std::span<const int32_t> tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  if (length < 1 || length > model_.max_positions) {
    return Error{ErrorCode::kInvalidConfig,
                 "prompt: found " + std::to_string(length) +
                     " tokens, wanted 1 to maxPositions = " + std::to_string(model_.max_positions)};
  }
  const StepProgram program =
      lower(forward_schedule(1),
            {.stage_end = {static_cast<int>(model_.layers.size())}, .reduces_control = false});
  const int64_t sizes[] = {1};
  const ActivationPlan plan = ActivationPlan::make(model_, program, sizes, length, compute_);
  TRAINYARD_TRY(grow_arena(plan.bytes()));
  logits_.resize(static_cast<size_t>(model_.padded_vocab));
  const int64_t ordinal[] = {0};
  OneBatch batch({.size = 1, .tokens_per_sample = length, .tokens = tokens, .samples = ordinal});
  StepSetup setup = base_setup(batch, program, plan);
  setup.training = false;
  setup.last_logits = logits_.data();
  TRAINYARD_TRY(interpreter_->run(setup));
  return std::span<const float>(logits_);
}

MemoryReport Engine::memory() const {
  const int64_t weights = weights_->bytes() + states_->master_bytes();
  const int64_t moments = states_->moment_bytes();
  const int64_t accumulators = states_->accumulator_bytes();
  return {.parameters = weights + moments + accumulators,
          .weights = weights,
          .moments = moments,
          .accumulators = accumulators,
          .activations = plan_.bytes(),
          .activations_live_max = plan_.live_bytes_max(),
          .kernel_scratch = kernels_->scratch_bytes()};
}

}  // namespace trainyard::engine
