#include "worker/engine/engine.h"

#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "worker/device/cpu_device.h"
#include "worker/engine/limits.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"
#include "worker/memory/arena_plan.h"
#include "worker/trace/recorder.h"

namespace trainyard::engine {
namespace {

/// Heap blocks filled with a pattern that is no sensible number, to see what is touched.
class PoisonedMemory final : public MemorySource {
 public:
  static constexpr std::byte kPoison{0xA5};

  Result<std::unique_ptr<MemoryBlock>> allocate(int64_t bytes) override {
    auto block = heap_.allocate(bytes);
    if (!block) return block;
    std::memset((*block)->bytes().data(), static_cast<int>(kPoison), (*block)->bytes().size());
    blocks_.push_back((*block)->bytes());
    return block;
  }
  /// Bytes from a block's beginning to the last one touched.
  static int64_t high_water(std::span<const std::byte> block) {
    size_t end = block.size();
    while (end > 0 && block[end - 1] == kPoison)
      --end;
    return static_cast<int64_t>(end);
  }
  const std::vector<std::span<std::byte>>& blocks() const { return blocks_; }

 private:
  HeapMemorySource heap_;
  std::vector<std::span<std::byte>> blocks_;
};

/// Of every parameter whose name ends so.
void scale_weights(Engine& engine, const std::string& name, float scale) {
  for (size_t p = 0; p < engine.model().params.size(); ++p) {
    if (!engine.model().params[p].name().ends_with(name)) continue;
    for (float& weight : engine.states().weights().owned_fp32(static_cast<int>(p)))
      weight *= scale;
  }
}

/// What an instruction is called in a trace.
std::string name_in_trace(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::kForward:
      return "forward";
    case InstructionKind::kRecompute:
      return "recompute";
    case InstructionKind::kBackwardInput:
      return "backward_input";
    case InstructionKind::kBackwardWeight:
      return "backward_weight";
    case InstructionKind::kReduce:
      return "reduce";
    case InstructionKind::kAccumulate:
      return "accumulate";
    case InstructionKind::kAllReduce:
      return "all_reduce";
    case InstructionKind::kRound:
      return "round";
    case InstructionKind::kReduceControl:
      return "reduce_control";
    case InstructionKind::kGather:
      return "gather";
    case InstructionKind::kFree:
      return "free";
    case InstructionKind::kOptimize:
      return "optimize";
    case InstructionKind::kSnapshot:
      return "snapshot";
    case InstructionKind::kSendActivation:
      return "send_activation";
    case InstructionKind::kReceiveActivation:
      return "receive_activation";
    case InstructionKind::kSendGradient:
      return "send_gradient";
    case InstructionKind::kReceiveGradient:
      return "receive_gradient";
  }
  return "?";
}

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> make(const api::EngineSpec& spec, MemorySource& memory,
                               trace::SpanSink* spans = nullptr,
                               Purpose purpose = Purpose::kTrain) {
    auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                         {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
    EXPECT_TRUE(world) << world.error().message;
    world_ = *std::move(world);
    groups_ = comm::Groups::of_data_ranks(*world_);
    devices_.push_back(*make_cpu_device({}, &memory));
    auto engine = Engine::create({.spec = spec,
                                  .device = devices_.back().get(),
                                  .groups = &groups_,
                                  .purpose = purpose,
                                  .observer = {.spans = spans}});
    EXPECT_TRUE(engine) << engine.error().message;
    return engine ? *std::move(engine) : nullptr;
  }
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<comm::Communicator> world_;
  comm::Groups groups_;
};

class TrainingArenaTest : public EngineTest,
                          public ::testing::WithParamInterface<api::Recompute> {};

INSTANTIATE_TEST_SUITE_P(Recompute, TrainingArenaTest,
                         ::testing::Values(api::Recompute::kNone, api::Recompute::kSelective,
                                           api::Recompute::kFull));

TEST_P(TrainingArenaTest, IsTouchedToItsPlannedEndAndNotRead) {
  // Poison in place of zeros: a buffer read before it is written would change the hash.
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.parallelism.recompute = GetParam();
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  PoisonedMemory poisoned;
  const auto engine = make(spec, poisoned);
  ASSERT_NE(engine, nullptr);
  const auto arena = poisoned.blocks().back();
  ASSERT_EQ(static_cast<int64_t>(arena.size()), engine->memory().activations);
  // Moments start at zero in a fresh engine; here they must be made so.
  for (size_t p = 0; p < engine->model().params.size(); ++p) {
    for (auto span :
         {engine->states().m(static_cast<int>(p)), engine->states().v(static_cast<int>(p))}) {
      std::fill(span.begin(), span.end(), 0.0F);
    }
  }
  EXPECT_TRUE(engine->initialize());
  matrix::StreamBatches batches(stream, spec, 1, 0);
  ASSERT_TRUE(engine->step(batches));
  const std::string hash = to_hex(EngineState(*engine).hash().value());
  EXPECT_GE(PoisonedMemory::high_water(arena), engine->memory().activations - kArenaAlignment);

  const auto clean =
      matrix::train_world(spec, {.micro_sequences = spec.batch.micro_sequences}, 1, stream);
  ASSERT_TRUE(clean) << clean.error().message;
  EXPECT_EQ(hash, clean->front().state_hash);
}

/// One sequence of four tokens a step: what evaluates and samples takes more.
api::EngineSpec spec_of_small_steps() {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.model.max_positions = 509;
  spec.data.sequence_length = 4;
  spec.batch = {.global_sequences = 1, .micro_sequences = 1};
  return spec;
}

class ForwardArenaTest : public EngineTest {
 protected:
  ForwardArenaTest() : engine_(make(spec_, memory_)) { EXPECT_TRUE(engine_->initialize()); }

  void evaluate() {
    api::EngineSpec held_out = spec_;
    held_out.batch = {.global_sequences = 100, .micro_sequences = 100};
    matrix::StreamBatches batches(stream_, held_out, 1, 0);
    ASSERT_TRUE(engine_->evaluate(batches, 100, 100));
  }
  void sample(size_t length) {
    const std::vector<int32_t> prompt(length, 1);
    ASSERT_TRUE(engine_->next_logits(prompt));
  }
  void expect_touched() {
    const auto arena = memory_.blocks().back();
    ASSERT_EQ(std::ssize(arena), engine_->memory().activations);
    EXPECT_GE(PoisonedMemory::high_water(arena), std::ssize(arena) - kArenaAlignment);
  }

  const api::EngineSpec spec_ = spec_of_small_steps();
  const std::vector<int32_t> stream_ = matrix::make_token_stream(4096, spec_.model.vocab, 1);
  PoisonedMemory memory_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(ForwardArenaTest, IsTouchedToItsPlannedEndByAnEvaluation) {
  evaluate();
  expect_touched();
}

TEST_F(ForwardArenaTest, IsTouchedToItsPlannedEndByTheLongestPrompt) {
  sample(509);
  expect_touched();
}

TEST_F(ForwardArenaTest, GrowsByDoublingWithTheLongestPrompt) {
  evaluate();
  sample(1);
  const size_t blocks = memory_.blocks().size();
  for (const size_t length : {64, 256, 2})
    sample(length);
  evaluate();
  EXPECT_EQ(memory_.blocks().size(), blocks);
  sample(257);
  const size_t grown = memory_.blocks().size();
  EXPECT_GT(grown, blocks);
  for (const size_t length : {509, 2, 300})
    sample(length);
  evaluate();
  EXPECT_EQ(memory_.blocks().size(), grown);
}

TEST_F(EngineTest, MoreRanksThanSequencesAreRefusedWithTheNumbers) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.batch.global_sequences = 2;
  const auto result = matrix::train_world(spec, {.ranks = 3}, 1,
                                          matrix::make_token_stream(500, spec.model.vocab, 1));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("found 2, wanted at least the 3"), std::string::npos)
      << result.error().message;
}

TEST(BatchLimitsTest, ARanksMicroBatchesAreThoseOfItsShare) {
  const auto refused = [](int64_t global, int64_t micro, int64_t ranks) {
    return !check_batch({.batch = {.global_sequences = global, .micro_sequences = micro}}, ranks);
  };
  EXPECT_FALSE(refused(4096, 1, 1));
  EXPECT_TRUE(refused(4097, 1, 1));
  EXPECT_FALSE(refused(8192, 1, 2));
  EXPECT_TRUE(refused(8193, 1, 2)) << "one of them has 4,097";
  EXPECT_FALSE(refused(8192, 2, 1));
  EXPECT_TRUE(refused(8193, 2, 1));
}

TEST_F(EngineTest, ANonFiniteGradientSkipsTheStep) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  HeapMemorySource memory;
  const auto engine = make(spec, memory);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->initialize());
  const int wte = 0;
  const float before = engine->states().weights().owned_fp32(wte)[5];
  // wpe: reaches every loss
  engine->states().weights().owned_fp32(1)[0] = std::numeric_limits<float>::infinity();
  matrix::StreamBatches batches(stream, spec, 1, 0);
  const auto report = engine->step(batches);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->skipped);
  EXPECT_TRUE(std::isnan(report->loss)) << "no loss is not a loss of nothing: " << report->loss;
  EXPECT_EQ(engine->states().weights().owned_fp32(wte)[5], before) << "parameters are untouched";
  EXPECT_EQ(engine->optimizer().updates(), 0) << "Adam's t does not advance";
  EXPECT_EQ(engine->steps_done(), 1) << "the batch is consumed";
  batches.start_step(0);
  const auto evaluated =
      engine->evaluate(batches, spec.batch.global_sequences, spec.batch.micro_sequences);
  ASSERT_TRUE(evaluated) << evaluated.error().message;
  EXPECT_TRUE(std::isnan(evaluated->loss)) << evaluated->loss;
}

// Squares are added as each gradient ends: of one micro-batch, and of so many that the program
// repeats itself.
TEST_F(EngineTest, TheNormIsThatOfAllSumsWhateverTheMicroBatches) {
  std::vector<double> norms;
  for (const int64_t micro_sequences : {1, 5, 20}) {
    api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
    spec.batch.global_sequences = 20;
    spec.batch.micro_sequences = micro_sequences;
    HeapMemorySource heap;
    const auto engine = make(spec, heap);
    ASSERT_NE(engine, nullptr);
    EXPECT_TRUE(engine->initialize());
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
    matrix::StreamBatches batches(stream, spec, 1, 0);
    const auto report = engine->step(batches);
    ASSERT_TRUE(report) << report.error().message;
    norms.push_back(report->gradient_norm);
    double squares = 0;
    for (size_t p = 0; p < engine->model().params.size(); ++p) {
      const SumSpan sums = engine->states().owned_sums_of(static_cast<int>(p));
      for (int64_t i = 0; i < sums.size; ++i) {
        const auto sum = static_cast<double>(*sums.from(i).exact);
        const double gradient = std::ldexp(sum, -gradient_quantum_log2(report->targets)) /
                                static_cast<double>(report->targets);
        squares += gradient * gradient;
      }
    }
    EXPECT_NEAR(report->gradient_norm, std::sqrt(squares), 1e-6 * report->gradient_norm);
    EXPECT_EQ(report->gradient_norm, norms.front()) << micro_sequences;
  }
}

TEST_F(EngineTest, AnEvaluationInWhichASumDidNotFitHasNoLoss) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  spec.numerics = matrix::cut_numerics();  // one that is not cut fits whatever it is
  spec.model.dropout = 0;
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  HeapMemorySource memory;
  const auto engine = make(spec, memory);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->initialize());
  // The last norm takes the scale out again: what is missing in the sums leaves a finite loss.
  scale_weights(*engine, "mlp.c_proj.weight", 1e9F);
  matrix::StreamBatches batches(stream, spec, 1, 0);
  const auto evaluated =
      engine->evaluate(batches, spec.batch.global_sequences, spec.batch.micro_sequences);
  ASSERT_TRUE(evaluated) << evaluated.error().message;
  EXPECT_TRUE(std::isnan(evaluated->loss)) << evaluated->loss;
}

TEST_F(EngineTest, AnEvaluationInPiecesHasTheSameLoss) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const auto stream = matrix::make_token_stream(8192, spec.model.vocab, 1);
  HeapMemorySource memory;
  const auto engine = make(spec, memory);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->initialize());
  constexpr int64_t kWindows = 150;
  spec.batch.global_sequences = kWindows;
  const auto loss_by = [&](int64_t micro_sequences) {
    spec.batch.micro_sequences = micro_sequences;
    matrix::StreamBatches batches(stream, spec, 1, 0);
    const auto report = engine->evaluate(batches, kWindows, micro_sequences);
    EXPECT_TRUE(report) << report.error().message;
    return report ? report->loss : 0;
  };
  const double whole = loss_by(50);
  EXPECT_GT(whole, 0);
  EXPECT_EQ(loss_by(1), whole) << "150 micro-batches";
}

TEST_F(EngineTest, AnEngineThatDoesNotTrainHoldsWeightsAloneAndFindsTheSameLoss) {
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    const api::EngineSpec spec = matrix::prime_spec(compute);
    const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
    const auto loss_of = [&](Engine& engine) {
      matrix::StreamBatches batches(stream, spec, 1, 0);
      const auto report = engine.evaluate(batches, 11, spec.batch.micro_sequences);
      EXPECT_TRUE(report) << report.error().message;
      return report ? report->loss : 0;
    };
    HeapMemorySource training_memory;
    const auto training = make(spec, training_memory);
    ASSERT_NE(training, nullptr);
    EXPECT_TRUE(training->initialize());
    const double loss = loss_of(*training);
    EXPECT_GT(loss, 0);

    PoisonedMemory memory;
    const auto engine = make(spec, memory, nullptr, Purpose::kInfer);
    ASSERT_NE(engine, nullptr);
    EXPECT_TRUE(engine->initialize());
    EXPECT_EQ(loss_of(*engine), loss);
    const MemoryReport report = engine->memory();
    EXPECT_EQ(report.moments, 0);
    EXPECT_EQ(report.sums, 0);
    int64_t weights = 0;  // what ops read and nothing else
    for (size_t p = 0; p < engine->model().params.size(); ++p) {
      const auto param = static_cast<int>(p);
      weights += std::ssize(engine->states().weights().owned(param));
    }
    EXPECT_LT(report.parameters - weights, 64 * 4 * std::ssize(engine->model().params)) << "gaps";
    int64_t allocated = 0;
    for (const auto& block : memory.blocks())
      allocated += std::ssize(block);
    EXPECT_EQ(allocated, report.parameters + report.activations + report.kernel_scratch);
  }
}

/// One span an instruction of each step, in the program's order, and all within their step.
void expect_program(const std::vector<trace::Span>& spans, const StepProgram& program) {
  size_t next = 0;
  for (const trace::Span& span : spans) {
    if (span.activity == trace::Activity::kStep) {
      EXPECT_EQ(next, program.size()) << "step " << span.step;
      next = 0;
      continue;
    }
    EXPECT_LE(span.begin_ns, span.end_ns);
    const bool waits = span.activity == trace::Activity::kDataWait ||
                       span.activity == trace::Activity::kCommunicationWait;
    if (waits && span.instruction < 0) continue;  // for the last gathers, after the last step
    ASSERT_LT(next, program.size());
    EXPECT_EQ(span.instruction, static_cast<int>(next));
    if (waits) continue;
    const Instruction& instruction = program[next++];
    EXPECT_EQ(trace::name_of(span.activity), name_in_trace(instruction.kind));
    EXPECT_EQ(span.micro_batch, instruction.micro_batch);
    EXPECT_EQ(span.layer, instruction.layer);
    EXPECT_EQ(span.unit, instruction.unit);
  }
}

TEST_F(EngineTest, SpansAreTheProgramAndChangeNoBit) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  trace::Recorder recorder(10);
  HeapMemorySource memory;
  const auto engine = make(spec, memory, &recorder);
  ASSERT_NE(engine, nullptr);
  world_->observe(&recorder, trace::Track::kDataGroup);
  EXPECT_TRUE(engine->initialize());
  matrix::StreamBatches batches(stream, spec, 1, 0);
  for (int64_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(engine->step(batches));
  }
  ASSERT_TRUE(engine->settle());
  const trace::Spans spans = recorder.newest();
  expect_program(spans[static_cast<size_t>(trace::Track::kStep)], engine->program());
  const auto collectives = std::count_if(
      engine->program().begin(), engine->program().end(), [](const Instruction& instruction) {
        return instruction.kind == InstructionKind::kReduce ||
               instruction.kind == InstructionKind::kReduceControl ||
               instruction.kind == InstructionKind::kGather;
      });
  EXPECT_EQ(spans[static_cast<size_t>(trace::Track::kDataGroup)].size(),
            static_cast<size_t>(3 * collectives));
  const auto untraced =
      matrix::train_world(spec, {.micro_sequences = spec.batch.micro_sequences}, 3, stream);
  ASSERT_TRUE(untraced) << untraced.error().message;
  EXPECT_EQ(to_hex(EngineState(*engine).hash().value()), untraced->front().state_hash);
}

TEST_F(EngineTest, TheLossOfADivergedModelIsLargeAndNotWrapped) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32);
  const auto stream = matrix::make_token_stream(4096, spec.model.vocab, 1);
  HeapMemorySource memory;
  const auto engine = make(spec, memory);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->initialize());
  scale_weights(*engine, "ln_f.weight",
                1.6e7F);  // each loss fits its fixed point, their sum does not
  matrix::StreamBatches batches(stream, spec, 1, 0);
  const auto report = engine->step(batches);
  ASSERT_TRUE(report) << report.error().message;
  const auto targets = static_cast<double>(spec.batch.global_sequences * spec.data.sequence_length);
  EXPECT_GT(report->loss * targets, 0x1p31) << "or the exact sum would have held it";
  EXPECT_LT(report->loss, 1e10);
}

TEST_F(EngineTest, TheLastLogitsDoNotDependOnLaterContextLength) {
  const api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kBF16);
  HeapMemorySource memory;
  const auto engine = make(spec, memory);
  ASSERT_NE(engine, nullptr);
  EXPECT_TRUE(engine->initialize());
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
  const auto first = engine->next_logits(prompt);
  ASSERT_TRUE(first);
  const std::vector<float> copy(first->begin(), first->end());
  ASSERT_TRUE(engine->next_logits(std::vector<int32_t>(20, 7)));
  const auto again = engine->next_logits(prompt);
  ASSERT_TRUE(again);
  EXPECT_EQ(copy, std::vector<float>(again->begin(), again->end()));
  EXPECT_FALSE(engine->next_logits(std::vector<int32_t>(32, 7))) << "longer than maxPositions";
}

TEST(KernelLimitsTest, ShapesBeyondTheScratchAreRefusedByName) {
  api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kBF16);
  EXPECT_TRUE(check_kernel_limits(spec, cpu_limits()));
  spec.numerics.key_block = 257;
  EXPECT_EQ(check_kernel_limits(spec, cpu_limits()).error().message,
            "engine.numerics.keyBlock: found 257, wanted at most 256");
  spec.numerics = {.grain_tokens = 1024, .key_block = 256};
  spec.model.hidden = 39;  // three heads of 13
  EXPECT_NE(check_kernel_limits(spec, cpu_limits()).error().message.find("an even hidden / heads"),
            std::string::npos);
  spec.precision.compute = api::NumberFormat::kFP32;
  EXPECT_TRUE(check_kernel_limits(spec, cpu_limits()));
  spec.data.sequence_length = 1 << 17;
  EXPECT_EQ(check_kernel_limits(spec, cpu_limits()).error().message,
            "engine.data.sequenceLength: found 131072, wanted at most 65536 with heads of 13 "
            "features");
  // Going back all heads that read a key head count.
  spec.data.sequence_length = 1 << 16;
  spec.model.kv_heads = 1;
  EXPECT_FALSE(check_kernel_limits(spec, cpu_limits()));
  EXPECT_TRUE(check_kernel_limits(spec, cpu_limits(), false));
  EXPECT_EQ(attended_positions(spec.model, cpu_limits()), 1 << 16);
  spec.model.kv_heads = 0;
  spec.data.sequence_length = 1 << 17;
  // In a ring the scratch is that of a block.
  spec.parallelism.context_mode = api::ContextMode::kRing;
  spec.parallelism.context = 2;
  EXPECT_TRUE(check_kernel_limits(spec, cpu_limits()));
  spec.data.sequence_length = 1 << 19;
  EXPECT_EQ(check_kernel_limits(spec, cpu_limits()).error().message,
            "engine.data.sequenceLength: found 524288, wanted at most 262144 with heads of 13 "
            "features");
  spec.model.head_dim = 272;
  EXPECT_EQ(check_kernel_limits(spec, cpu_limits()).error().message,
            "engine.model.headDim: found 272, wanted at most 256");
}

}  // namespace
}  // namespace trainyard::engine
