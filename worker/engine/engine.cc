#include "worker/engine/engine.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <thread>
#include <utility>

#include "common/api/numerics.h"
#include "common/base/check.h"
#include "worker/engine/limits.h"
#include "worker/model/family.h"
#include "worker/model/initialize.h"
#include "worker/model/parallelize.h"
#include "worker/program/schedules/schedules.h"
#include "worker/state/units.h"

namespace trainyard::engine {
namespace {

/// Micro-batches of a piece of an evaluation at most.
constexpr int64_t kMicroBatchesOfPiece = 64;
/// Passes of a micro-batch in a step for one in an evaluation.
constexpr int64_t kPassesOfStep = 3;
/// Values on their way between the host and the device: 16 MiB.
constexpr int64_t kStagedElements = int64_t{4} << 20;

double mean_loss(const ControlWord& control) {
  // A loss that is not finite or too large counts as nothing in the sums: their mean would flatter.
  // Of more targets than the sums are made for they may have wrapped.
  // Of none there is no mean.
  const bool is_known =
      control.loss_unknown == 0 && control.targets > 0 && control.targets <= kernels::kLossesMax;
  if (!is_known) return std::numeric_limits<double>::quiet_NaN();
  return loss_total(control) / static_cast<double>(control.targets);
}

std::span<std::byte> bytes_of(const std::unique_ptr<MemoryBlock>& block) {
  return block ? block->bytes() : std::span<std::byte>();
}

/// Memory for prompts grows by doubling: each longer one would be planned anew.
int64_t rows_planned_for(int64_t prompt) {
  constexpr int64_t kLeast = 256;
  return std::max(kLeast, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(prompt))));
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

Result<std::unique_ptr<Engine>> Engine::create(const EngineSetup& setup) {
  auto engine = std::unique_ptr<Engine>(new Engine(setup));
  engine->setup_.spec.numerics = api::with_defaults(setup.spec);
  const api::EngineSpec& spec = engine->setup_.spec;
  Device& device = *setup.device;
  TRAINYARD_ASSIGN(Model model, build_model(spec.model, *spec.numerics.tensor_chunks));
  const comm::Groups& groups = *setup.groups;
  TRAINYARD_ASSIGN(engine->stages_, stages_of(model, spec, groups.mesh));
  TRAINYARD_ASSIGN(engine->model_, parallelize(std::move(model), groups.mesh, groups.at));
  TRAINYARD_TRY(check_kernel_limits(spec, device.limits(), setup.purpose == Purpose::kTrain));
  engine->formats_ = device.formats(compute_type(spec.precision));
  if (setup.purpose == Purpose::kTrain) {
    TRAINYARD_TRY(check_sums(spec.numerics, engine->formats_));
  }
  const int64_t scratch = device.kernels().scratch_bytes();
  TRAINYARD_ASSIGN(engine->kernel_scratch_, device.memory().allocate(kStepWordsBytes + scratch));
  const std::span<std::byte> block = engine->kernel_scratch_->bytes();
  device.kernels().set_scratch(block.subspan(kStepWordsBytes));

  TRAINYARD_TRY(engine->make_states());
  engine->optimizer_ = std::make_unique<Optimizer>(spec.optimizer, spec.learning_rate_schedule,
                                                   api::horizon_of(spec), engine->model_);
  engine->interpreter_ =
      std::make_unique<Interpreter>(Machine{.model = &engine->model_,
                                            .stages = &engine->stages_,
                                            .device = &device,
                                            .words = engine->words(),
                                            .states = engine->states_.get(),
                                            .groups = setup.groups,
                                            .optimizer = engine->optimizer_.get(),
                                            .observer = &engine->setup_.observer});
  TRAINYARD_TRY(engine->plan_step());
  return engine;
}

Status Engine::make_states() {
  const layout::Mesh& mesh = setup_.groups->mesh;
  TRAINYARD_ASSIGN(layout_, make_layout(model_,
                                        make_units(model_, formats_.compute, setup_.unit_bytes,
                                                   stages_, mesh.slices),
                                        setup_.spec.parallelism, mesh));
  const layout::Coordinate& at = setup_.groups->at;
  layout_ = layout_.at_tensor_rank(at.tp);
  TRAINYARD_ASSIGN(weights_, Weights::create(layout_, at, *setup_.device));
  TRAINYARD_ASSIGN(states_, States::create(layout_, at, *weights_, setup_.device->memory(),
                                           setup_.purpose, formats_.sums));
  name_order_.resize(model_.params.size());
  std::iota(name_order_.begin(), name_order_.end(), 0);
  std::sort(name_order_.begin(), name_order_.end(), [this](int a, int b) {
    return model_.params[static_cast<size_t>(a)].name() <
           model_.params[static_cast<size_t>(b)].name();
  });
  return {};
}

Status Engine::plan_step() {
  micro_batches_of_piece_ = kMicroBatchesOfPiece;
  if (setup_.purpose == Purpose::kInfer) return {};
  const int ranks = setup_.groups->data_ranks();
  TRAINYARD_TRY(check_batch(setup_.spec, ranks));
  const data::BatchPartition partition = partition_of(setup_.spec, ranks);
  const int rank = setup_.groups->data_rank();
  const int64_t most = partition.micro_batches_max();
  const StepShape shape = step_shape(setup_.spec, partition, rank, formats_);
  TRAINYARD_ASSIGN(step_, lower_jointly(
                              [&](int pp) {
                                return training_schedule(shape.schedule, stages_, shape.rounds, pp);
                              },
                              [&](int d) { return partition.micro_batches(d); }));
  // An evaluation ends between two pieces: a rank that is asked to stop waits no longer for that
  // than for a step.
  micro_batches_of_piece_ = std::min(kMicroBatchesOfPiece, kPassesOfStep * most);
  plan_ = make_step_plan(step_.program, model_, lowering(), shape);
  if (shape.evaluated > 0) forward_extent_ = {.rows = shape.evaluated * shape.tokens_per_sample};
  TRAINYARD_TRY(grow(buffer_memory_, plan_.buffer_bytes()));
  return grow(arena_, plan_.arena_bytes());
}

Status Engine::prepare_forward(OpExtent extent) {
  // One plan for evaluations and samples.
  extent.rows = std::max(extent.rows, forward_extent_.rows);
  extent.has_targets = extent.has_targets || forward_extent_.has_targets;
  if (extent.rows > forward_extent_.rows || extent.has_targets != forward_extent_.has_targets) {
    plan_.evaluation = forward_memory(model_, lowering(), extent);
    forward_extent_ = extent;
  }
  TRAINYARD_TRY(grow(buffer_memory_, plan_.evaluation.buffers().bytes()));
  return grow(arena_, plan_.evaluation.arena_bytes());
}

/// Ranks of a stage with as many micro-batches run the same program: the first stands for all. Its
/// peers in the pipeline are the first of theirs.
Result<JointProgram> Engine::lower_jointly(
    const std::function<Schedule(int pp)>& schedule_of,
    const std::function<int64_t(int data_rank)>& micro_batches_of) const {
  const comm::Groups& groups = *setup_.groups;
  std::map<std::pair<int, int>, RankProgram> by_kind;  // stage and number of micro-batches
  for (int rank = 0; rank < groups.mesh.size(); ++rank) {
    const layout::Coordinate at = layout::coordinate_of(groups.mesh, rank);
    Lowering lowering = this->lowering();
    lowering.at = at;
    lowering.micro_batches = static_cast<int>(micro_batches_of(layout::data_rank(groups.mesh, at)));
    RankProgram& program = by_kind[{at.pp, lowering.micro_batches}];
    if (!program.program.empty()) continue;
    program = {.program = lower(schedule_of(at.pp), lowering),
               .micro_batches = lowering.micro_batches,
               .at = at,
               .rank = rank};
  }
  const auto own =
      by_kind.find({groups.at.pp, static_cast<int>(micro_batches_of(groups.data_rank()))});
  const auto place = static_cast<size_t>(std::distance(by_kind.begin(), own));
  std::vector<RankProgram> ranks;
  for (auto& [kind, program] : by_kind)
    ranks.push_back(std::move(program));
  return judge(ranks, place);
}

Result<JointProgram> Engine::lower_forward(
    int64_t rounds, const std::function<int64_t(int data_rank)>& micro_batches_of) const {
  return lower_jointly(
      [&](int pp) { return evaluation_schedule(stages_, static_cast<int>(rounds), pp); },
      micro_batches_of);
}

Result<JointProgram> Engine::judge(std::span<const RankProgram> ranks, size_t own) const {
  TRAINYARD_ASSIGN(Simulation simulation, simulate(ranks, lowering()));
  return JointProgram{.program = ranks[own].program,
                      .level = std::move(simulation.level[own]),
                      .level_max = simulation.level_max};
}

Status Engine::initialize() {
  // Elements are independent of each other, so any cut gives the same bits: every thread takes its
  // part of a slice's rows.
  const auto fill = [this](int p, const layout::Rectangle& slice,
                           std::span<float> values) -> Status {
    const int64_t row = slice.elements() / slice.shape[0];
    const int64_t parts = std::min<int64_t>(setup_.device->host_threads(), slice.shape[0]);
    const auto fill_part = [&](int64_t index) {
      const layout::Range rows = layout::even_share(slice.shape[0], parts, index);
      layout::Rectangle part = slice;
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
  return fill_parameters(fill);
}

Status Engine::set_parameters(const FillSlice& fill) {
  TRAINYARD_TRY(interpreter_->settle());  // a gather under way would write over them
  return fill_parameters(fill);
}

Status Engine::fill_parameters(const FillSlice& fill) {
  weights_are_gathered_ = false;
  kernels::KernelSet& kernels = setup_.device->kernels();
  for (const int param : name_order_) {
    if (states_->has_master(param)) {
      const std::span<float> master = states_->master(param);
      TRAINYARD_TRY(this->fill(param, master, fill));
      if (weights_->dtype(param) == DType::kFloat32) continue;
      kernels.cast_to_bf16(master.data(), weights_->owned_bf16(param), std::ssize(master));
      continue;
    }
    TRAINYARD_TRY(stage(param, fill, [&](int64_t first, std::span<const float> values) {
      kernels.cast_to_bf16(values.data(), weights_->owned_bf16(param) + first, std::ssize(values));
    }));
  }
  return setup_.device->status();
}

Status Engine::fill(int param, std::span<float> owned, const FillSlice& fill) {
  return stage(param, fill, [&](int64_t first, std::span<const float> values) {
    setup_.device->copy({reinterpret_cast<std::byte*>(owned.data() + first),
                         std::as_bytes(values).data(), values.size_bytes()});
  });
}

/// Values pass through host memory in pieces of whole rows.
Status Engine::stage(int param, const FillSlice& fill, const UseStaged& use) {
  const std::vector<layout::Rectangle> slices = states_->owned_slices(param);
  if (slices.empty()) return {};
  if (!staged_) {
    TRAINYARD_ASSIGN(staged_, setup_.device->host_memory().allocate(staged_bytes()));
  }
  auto* const values = reinterpret_cast<float*>(staged_->bytes().data());
  int64_t filled = 0;
  for (const layout::Rectangle& slice : slices) {
    const int64_t rows = std::max<int64_t>(1, kStagedElements * slice.shape[0] / slice.elements());
    layout::Rectangle part = slice;
    for (int64_t done = 0; done < slice.shape[0]; done += part.shape[0]) {
      part.offset[0] = slice.offset[0] + done;
      part.shape[0] = std::min(rows, slice.shape[0] - done);
      const std::span<float> piece(values, static_cast<size_t>(part.elements()));
      TRAINYARD_TRY(fill(param, part, piece));
      use(filled, piece);
      TRAINYARD_TRY(setup_.device->wait());  // the next piece takes its place
      filled += std::ssize(piece);
    }
  }
  return {};
}

/// Of the largest piece.
int64_t Engine::staged_bytes() const {
  int64_t most = kStagedElements;
  for (const ParamSpec& param : model_.params)
    most = std::max(most, param.elements() / param.tensor.shape[0]);
  return most * size_of(DType::kFloat32);
}

Status Engine::settle() {
  TRAINYARD_TRY(gather_weights());
  return interpreter_->settle();
}

/// After set_parameters(): from the ranks that own them.
Status Engine::gather_weights() {
  staged_.reset();
  if (std::exchange(weights_are_gathered_, true)) return {};
  // Whole anyway, or gathered when used.
  if (setup_.groups->mesh.fsdp == 1 || layout_.sharding().weights) return {};
  std::vector<RankProgram> by_stage;
  for (layout::Coordinate at; at.pp < setup_.groups->mesh.pp; ++at.pp) {
    std::vector<Instruction> gathers;
    for (int unit = 0; unit < layout_.units(); ++unit) {
      if (layout_.holds(unit, at))
        gathers.push_back({.kind = InstructionKind::kGather, .unit = unit});
    }
    by_stage.push_back({.program = std::move(gathers), .at = at});
  }
  TRAINYARD_ASSIGN(const JointProgram program,
                   judge(by_stage, static_cast<size_t>(setup_.groups->at.pp)));
  StepSetup setup = base_setup(nullptr, program, plan_.memory);
  TRAINYARD_TRY(interpreter_->run(setup));
  return interpreter_->settle();
}

StepSetup Engine::base_setup(data::MicroBatchSource* batches, const JointProgram& program,
                             const ProgramMemory& memory) {
  const api::BatchSpec& batch = setup_.spec.batch;
  const int64_t length = setup_.spec.data.sequence_length;
  const int64_t tokens = setup_.spec.numerics.grain_tokens;
  const int slices = (model_.context.ring ? 2 : 1) * model_.context.size *
                     (model_.share.slices ? model_.share.size : 1);
  // On a GPU a grain is at least what a rank has of a sequence.
  const int64_t grain = tokens > 0 ? tokens : length / slices;
  const int64_t targets = batch.global_sequences * length;
  return {.program = &program,
          .memory = &memory,
          .arena = bytes_of(arena_),
          .buffer_memory = bytes_of(buffer_memory_),
          .batches = batches,
          .formats = formats_,
          .numerics = {.seed = static_cast<uint64_t>(setup_.spec.seed),
                       .training = false,
                       .grain_tokens = grain,
                       .key_block = setup_.spec.numerics.key_block,
                       .gradient_quantum_log2 = gradient_quantum_log2(targets),
                       .sums = formats_.sums,
                       .grains_of_step = batch.global_sequences * ((length + grain - 1) / grain),
                       .targets_of_step = targets,
                       .overflow = &words()->overflow,
                       .loss_overflow = &words()->loss_overflow,
                       .loss_sum = &words()->control.loss_sum,
                       .coarse_loss_sum = &words()->control.coarse_loss_sum},
          .step = steps_done_,
          .bounds = {.rows = forward_extent_.rows,
                     .positions = model_.max_positions,
                     .grain_tokens = grain,
                     .slices = slices}};
}

Result<StepReport> Engine::step(data::MicroBatchSource& batches, const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.observer.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kStep, .step = steps_done_});
  TRAINYARD_CHECK(setup_.purpose == Purpose::kTrain);
  TRAINYARD_TRY(gather_weights());
  StepSetup setup = base_setup(&batches, step_, plan_.memory);
  const data::BatchPartition partition = partition_of(setup_.spec, setup_.groups->data_ranks());
  const int64_t samples = partition.share(setup_.groups->data_rank()).size();
  const int64_t all = setup_.spec.batch.global_sequences;
  setup.bounds.rows = partition.micro_batch(setup_.groups->data_rank(), 0).size() *
                      setup_.spec.data.sequence_length;
  setup.bounds.step_rows = samples * setup_.spec.data.sequence_length;
  setup.bounds.step_grains = samples * (setup.numerics.grains_of_step / all);
  setup.numerics.training = true;
  setup.stop_asked = &stop_asked;
  TRAINYARD_ASSIGN(const ControlWord control, interpreter_->run(setup));
  batches.end_step();
  ++steps_done_;
  const kernels::OptimizerScalars& scalars = optimizer_->scalars();
  return StepReport{.loss = mean_loss(control),
                    .gradient_norm = scalars.gradient_norm,
                    .learning_rate = scalars.learning_rate,
                    .targets = control.targets,
                    .skipped = scalars.skip != 0,
                    .stop_requested = control.stop_requested != 0};
}

Status Engine::at_snapshot(const std::function<Status()>& copy) {
  const RankProgram alike[] = {{.program = {{Instruction{.kind = InstructionKind::kSnapshot}}}}};
  TRAINYARD_ASSIGN(JointProgram program, judge(alike, 0));
  // A rank that cannot take a snapshot runs none, and levels are the same on all ranks.
  program.level_max = 0;
  StepSetup setup = base_setup(nullptr, program, plan_.memory);
  setup.snapshot = copy;
  TRAINYARD_TRY(interpreter_->run(setup));
  return {};
}

/// Nothing where nothing is needed.
Status Engine::grow(std::unique_ptr<MemoryBlock>& block, int64_t bytes) {
  if (bytes == 0 || (block && static_cast<int64_t>(block->bytes().size()) >= bytes)) return {};
  block.reset();
  TRAINYARD_ASSIGN(block, setup_.device->memory().allocate(bytes));
  return {};
}

Result<EvaluationReport> Engine::evaluate(data::MicroBatchSource& batches, int64_t sequences,
                                          int64_t micro_sequences, const StopAsked& stop_asked) {
  const trace::ScopedSpan span(setup_.observer.spans, trace::Track::kStep,
                               {.activity = trace::Activity::kEvaluate, .step = steps_done_});
  TRAINYARD_TRY(gather_weights());
  const data::BatchPartition partition{
      .samples = sequences, .micro_samples = micro_sequences, .ranks = setup_.groups->data_ranks()};
  // Whoever has fewer takes part in the gathers of the others.
  const int64_t most = partition.micro_batches_max();
  const int64_t length = setup_.spec.data.sequence_length;
  TRAINYARD_TRY(prepare_forward({.rows = evaluated_at_once(partition) * length,
                                 .tokens_per_sample = length,
                                 .formats = formats_}));
  JointProgram program;
  ControlWord control;
  for (int64_t done = 0; done < most && control.stop_requested == 0;) {
    const int64_t count = std::min(micro_batches_of_piece_, most - done);
    const bool last = done + count == most;
    if (done == 0 || last) {  // those between are all alike
      TRAINYARD_ASSIGN(program, lower_forward(count, [&](int d) {
                         return std::clamp<int64_t>(partition.micro_batches(d) - done, 0, count);
                       }));
    }
    StepSetup setup = base_setup(&batches, program, plan_.evaluation);
    setup.stop_asked = &stop_asked;
    TRAINYARD_ASSIGN(const ControlWord piece, interpreter_->run(setup));
    batches.end_step();
    add(control, piece);
    done += count;
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
  TRAINYARD_CHECK(setup_.groups->world->size() == 1);
  TRAINYARD_TRY(gather_weights());
  logits_.resize(static_cast<size_t>(model_.padded_vocab));
  const std::span<std::byte> logits = std::as_writable_bytes(std::span(logits_));
  TRAINYARD_TRY(grow(device_logits_, std::ssize(logits)));
  const int64_t rows = std::min(model_.max_positions, rows_planned_for(length));
  TRAINYARD_TRY(prepare_forward(
      {.rows = rows, .tokens_per_sample = rows, .formats = formats_, .has_targets = false}));
  if (sampling_.program.empty()) {
    TRAINYARD_ASSIGN(sampling_, lower_forward(1, [](int) { return 1; }));
  }
  const kernels::Sequence sequence[] = {{.length = length}};
  OneBatch batch({.rows = {.count = length, .sequences = sequence}, .tokens = tokens});
  StepSetup setup = base_setup(&batch, sampling_, plan_.evaluation);
  setup.numerics.last_logits = reinterpret_cast<float*>(device_logits_->bytes().data());
  TRAINYARD_TRY(interpreter_->run(setup));
  setup_.device->copy({logits.data(), device_logits_->bytes().data(), logits.size()});
  TRAINYARD_TRY(setup_.device->wait());
  return std::span<const float>(logits_);
}

MemoryReport Engine::memory() const {
  std::vector<int> in_flight;
  for (int stage = setup_.groups->at.pp; stage < stages_.size(); stage += stages_.ranks())
    in_flight.push_back(plan_.memory.slots(stage));
  const int64_t weights = weights_->bytes() + states_->master_bytes();
  const int64_t moments = states_->moment_bytes();
  const int64_t sums = states_->sum_bytes();
  return {.parameters = weights + moments + sums,
          .weights = weights,
          .moments = moments,
          .sums = sums,
          .lent_sums = plan_.memory.buffers().sum_bytes(),
          .lent_weights = std::ssize(bytes_of(buffer_memory_)) - plan_.memory.buffers().sum_bytes(),
          .activations = std::ssize(bytes_of(arena_)),
          .activations_kept = plan_.memory.kept_bytes(),
          .activations_live_max =
              std::max(plan_.memory.live_bytes_max(), plan_.evaluation.live_bytes_max()),
          .kernel_scratch = std::ssize(kernel_scratch_->bytes()),
          .in_flight = std::move(in_flight)};
}

}  // namespace trainyard::engine
