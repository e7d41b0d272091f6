#include "worker/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "kernels/cpu/cpu_kernel_set.h"
#include "worker/engine/limits.h"
#include "worker/model/family.h"
#include "worker/model/initialize.h"
#include "worker/program/checker.h"

namespace trainyard::engine {
namespace {

/// Micro-batches of an evaluation that are planned together: a plan takes some ten kilobytes for
/// each, and held-out sets have millions.
constexpr int64_t kEvaluatedAtOnce = 64;

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
class OneBatch final : public data::MicroBatchSource {
 public:
  explicit OneBatch(const data::MicroBatch& batch) : batch_(batch) {}
  Result<data::MicroBatch> micro_batch(int) override { return batch_; }
  void end_step() override {}

 private:
  data::MicroBatch batch_;
};

}  // namespace

Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineSetup& setup, MemorySource& memory) {
  auto engine = std::unique_ptr<Engine>(new Engine(setup));
  const api::EngineSpec& spec = engine->setup_.spec;
  TRAINYARD_ASSIGN(engine->model_, build_model(spec.model));
  TRAINYARD_TRY(check_kernel_limits(spec));
  engine->memory_source_ = &memory;
  engine->compute_ = compute_type(spec.precision);
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
  TRAINYARD_TRY(engine->plan_step());
  return engine;
}

Status Engine::make_states(MemorySource& memory) {
  units_ = make_units(model_, compute_, setup_.unit_bytes);
  TRAINYARD_ASSIGN(layout_,
                   make_layout(model_, units_, setup_.spec.parallelism, setup_.groups->mesh));
  const int shard_rank = setup_.groups->at.fsdp;
  TRAINYARD_ASSIGN(weights_, Weights::create(layout_, shard_rank, units_, memory));
  TRAINYARD_ASSIGN(states_, States::create(layout_, shard_rank, *weights_, memory));
  name_order_.resize(model_.params.size());
  std::iota(name_order_.begin(), name_order_.end(), 0);
  std::sort(name_order_.begin(), name_order_.end(), [this](int a, int b) {
    return model_.params[static_cast<size_t>(a)].name() <
           model_.params[static_cast<size_t>(b)].name();
  });
  return {};
}

Status Engine::plan_step() {
  const api::BatchSpec& batch = setup_.spec.batch;
  const int ranks = setup_.groups->data_ranks();
  TRAINYARD_TRY(check_batch(batch, ranks));
  const data::BatchPartition partition = partition_of(batch, ranks);
  std::vector<int> micro_batches;
  for (int d = 0; d < ranks; ++d)
    micro_batches.push_back(static_cast<int>(partition.micro_batches(d)));
  const Schedule schedule = one_stage_schedule(static_cast<int>(partition.micro_batches_max()));
  std::vector<StepProgram> programs;
  Lowering lowering = this->lowering();
  for (const int own : micro_batches) {
    lowering.micro_batches = own;
    programs.push_back(lower(schedule, lowering));
  }
  TRAINYARD_TRY(check_programs(programs, micro_batches, lowering));
  const int rank = setup_.groups->data_rank();
  program_ = std::move(programs[static_cast<size_t>(rank)]);
  buffers_ = UnitBuffers(program_, layout_, units_);
  TRAINYARD_TRY(grow(buffer_memory_, buffers_.bytes()));
  plan_ = ActivationPlan::make(model_, program_,
                               partition.sizes(rank, 0, partition.micro_batches_max()),
                               setup_.spec.data.sequence_length, compute_);
  return grow(arena_, plan_.bytes());
}

Lowering Engine::lowering() const {
  return {.stage_end = {static_cast<int>(model_.layers.size())},
          .unit_layers = units_.layers,
          .sharding = layout_.sharding()};
}

void Engine::initialize() {
  // Elements are independent of each other, so any cut gives the same bits: every thread takes its
  // part of a slice's rows.
  const auto fill = [this](int p, const layout::Slice& slice, std::span<float> values) -> Status {
    const int64_t row = slice.elements() / slice.shape[0];
    const int64_t parts = std::min<int64_t>(setup_.threads, slice.shape[0]);
    const auto fill_part = [&](int64_t index) {
      const layout::Range rows = layout::even_share(slice.shape[0], parts, index);
      layout::Slice part = slice;
      part.offset[0] += rows.begin;
      part.shape[0] = rows.size();
      initialize_slice(model_.params[static_cast<size_t>(p)],
                       static_cast<uint64_t>(setup_.spec.seed), part,
                       values.subspan(static_cast<size_t>(rows.begin * row),
                                      static_cast<size_t>(rows.size() * row)));
    };
    std::vector<std::jthread> helpers;
    for (int64_t index = 1; index < parts; ++index)
      helpers.emplace_back(fill_part, index);
    fill_part(0);
    return {};
  };
  TRAINYARD_CHECK(set_parameters(fill).has_value());
}

Status Engine::set_parameters(const FillSlice& fill) {
  TRAINYARD_TRY(interpreter_->settle());  // a gather under way would write over them
  weights_are_gathered_ = false;
  for (const int param : name_order_) {
    const std::span<float> master = states_->master(param);
    size_t filled = 0;
    for (const layout::Slice& slice : states_->owned_slices(param)) {
      const auto count = static_cast<size_t>(slice.elements());
      TRAINYARD_TRY(fill(param, slice, master.subspan(filled, count)));
      filled += count;
    }
    if (weights_->dtype(param) == DType::kFloat32) continue;
    kernels_->cast_to_bf16(master.data(),
                           reinterpret_cast<uint16_t*>(weights_->owned(param).data()),
                           std::ssize(master));
  }
  return {};
}

Status Engine::settle() {
  TRAINYARD_TRY(gather_weights());
  return interpreter_->settle();
}

/// After set_parameters(): from the ranks that own them.
Status Engine::gather_weights() {
  if (std::exchange(weights_are_gathered_, true)) return {};
  // Whole anyway, or gathered when used.
  if (setup_.groups->mesh.fsdp == 1 || layout_.sharding().weights) return {};
  std::vector<Instruction> gathers;
  for (int unit = 0; unit < layout_.units(); ++unit)
    gathers.push_back({.kind = InstructionKind::kGather, .unit = unit});
  const StepProgram program(std::move(gathers));
  StepSetup setup = base_setup(nullptr, program, plan_, buffers_);
  setup.training = false;
  TRAINYARD_TRY(interpreter_->run(setup));
  return interpreter_->settle();
}

StepSetup Engine::base_setup(data::MicroBatchSource* batches, const StepProgram& program,
                             const ActivationPlan& plan, const UnitBuffers& buffers) {
  const api::BatchSpec& batch = setup_.spec.batch;
  const int64_t length = setup_.spec.data.sequence_length;
  const int64_t grain = setup_.spec.numerics.grain_tokens;
  return {.program = &program,
          .plan = &plan,
          .arena = arena_->bytes(),
          .buffers = &buffers,
          .buffer_memory = buffer_memory_ ? buffer_memory_->bytes() : std::span<std::byte>(),
          .batches = batches,
          .compute = compute_,
          .seed = static_cast<uint64_t>(setup_.spec.seed),
          .step = steps_done_,
          .grain_tokens = grain,
          .targets_of_step = batch.global_sequences * length,
          .grains_of_step = batch.global_sequences * ((length + grain - 1) / grain)};
}

Result<StepReport> Engine::step(data::MicroBatchSource& batches, const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kStep, .step = steps_done_});
  TRAINYARD_TRY(gather_weights());
  StepSetup setup = base_setup(&batches, program_, plan_, buffers_);
  setup.stop_asked = &stop_asked;
  TRAINYARD_ASSIGN(const ControlWord control, interpreter_->run(setup));
  batches.end_step();
  ++steps_done_;
  const kernels::OptimizerScalars& scalars = optimizer_->scalars();
  return StepReport{.loss = mean_loss(control),
                    .gradient_norm = scalars.gradient_norm,
                    .learning_rate = scalars.learning_rate,
                    .skipped = scalars.skip != 0,
                    .stop_requested = control.stop_requested != 0};
}

Status Engine::at_snapshot(const std::function<Status()>& copy) {
  const StepProgram program({Instruction{.kind = InstructionKind::kSnapshot}});
  StepSetup setup = base_setup(nullptr, program, plan_, buffers_);
  setup.training = false;
  setup.snapshot = copy;
  TRAINYARD_TRY(interpreter_->run(setup));
  return {};
}

/// Nothing where nothing is needed.
Status Engine::grow(std::unique_ptr<MemoryBlock>& block, int64_t bytes) {
  if (bytes == 0 || (block && static_cast<int64_t>(block->bytes().size()) >= bytes)) return {};
  block.reset();
  TRAINYARD_ASSIGN(block, memory_source_->allocate(bytes));
  return {};
}

Result<EvaluationReport> Engine::evaluate(data::MicroBatchSource& batches, int64_t sequences,
                                          int64_t micro_sequences, const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kEvaluate, .step = steps_done_});
  TRAINYARD_TRY(gather_weights());
  const data::BatchPartition partition =
      partition_of({.global_sequences = sequences, .micro_sequences = micro_sequences},
                   setup_.groups->data_ranks());
  // Whoever has fewer takes part in the gathers of the others.
  const int64_t most = partition.micro_batches_max();
  StepProgram program;
  ActivationPlan plan;
  UnitBuffers buffers;
  ControlWord control;
  for (int64_t done = 0;;) {
    const int64_t count = std::min(kEvaluatedAtOnce, most - done);
    const bool last = done + count == most;
    const std::vector<int64_t> sizes = partition.sizes(setup_.groups->data_rank(), done, count);
    if (done == 0 || last) {  // those between are all alike
      Lowering lowering = this->lowering();
      lowering.micro_batches = static_cast<int>(sizes.size());
      lowering.reduces_control = last;
      program = lower(forward_schedule(static_cast<int>(count)), lowering);
      plan =
          ActivationPlan::make(model_, program, sizes, setup_.spec.data.sequence_length, compute_);
      buffers = UnitBuffers(program, layout_, units_);
      TRAINYARD_TRY(grow(arena_, plan.bytes()));
      TRAINYARD_TRY(grow(buffer_memory_, buffers.bytes()));
    }
    StepSetup setup = base_setup(&batches, program, plan, buffers);
    setup.training = false;
    setup.stop_asked = &stop_asked;
    setup.carried = control;
    TRAINYARD_ASSIGN(control, interpreter_->run(setup));
    batches.end_step();
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
  TRAINYARD_TRY(gather_weights());
  Lowering lowering = this->lowering();
  lowering.reduces_control = false;
  const StepProgram program = lower(forward_schedule(1), lowering);
  const int64_t sizes[] = {1};
  const ActivationPlan plan = ActivationPlan::make(model_, program, sizes, length, compute_);
  const UnitBuffers buffers(program, layout_, units_);
  TRAINYARD_TRY(grow(arena_, plan.bytes()));
  TRAINYARD_TRY(grow(buffer_memory_, buffers.bytes()));
  logits_.resize(static_cast<size_t>(model_.padded_vocab));
  const int64_t ordinal[] = {0};
  OneBatch batch({.size = 1, .tokens_per_sample = length, .tokens = tokens, .samples = ordinal});
  StepSetup setup = base_setup(&batch, program, plan, buffers);
  setup.training = false;
  setup.last_logits = logits_.data();
  TRAINYARD_TRY(interpreter_->run(setup));
  return std::span<const float>(logits_);
}

MemoryReport Engine::memory() const {
  const int64_t weights = weights_->bytes() + states_->master_bytes();
  const int64_t moments = states_->moment_bytes();
  const int64_t sums = states_->sum_bytes();
  return {.parameters = weights + moments + sums,
          .weights = weights,
          .moments = moments,
          .sums = sums,
          .lent_sums = buffers_.sum_bytes(),
          .lent_weights = buffers_.weight_bytes(),
          .activations = plan_.bytes(),
          .activations_live_max = plan_.live_bytes_max(),
          .kernel_scratch = kernels_->scratch_bytes()};
}

}  // namespace trainyard::engine
