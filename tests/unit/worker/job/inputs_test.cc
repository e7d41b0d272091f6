#include "worker/job/inputs.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/inotify.h>
#include <unistd.h>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/enum_names.h"
#include "common/api/numerics.h"
#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "worker/data/prepare.h"
#include "worker/job/resolve.h"
#include "worker/job/same_run.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

TEST(InputsTest, OneDatasetJsonServesAllThatIsHeldAgainstIt) {
  const testing_support::TemporaryDirectory directory;
  const std::filesystem::path texts = directory.path() / "texts";
  std::filesystem::create_directory(texts);
  std::ofstream(texts / "1.txt") << "a text to train on";
  std::ofstream(texts / "2.txt") << "a text that is held";
  data::PrepareOptions options;
  options.inputs = {texts};
  options.output = directory.path() / "set";
  options.splits = {{"heldout", "^2"}};
  ASSERT_TRUE(data::prepare(options));
  api::EngineSpec spec;
  spec.data.tokens = {(options.output / "train").string()};
  spec.data.validation = {(options.output / "heldout").string()};

  const UniqueFd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::filesystem::path manifest = options.output / "dataset.json";
  // Both, for the kernel tells of several events of one kind in a row as one.
  ASSERT_GE(::inotify_add_watch(watch.get(), manifest.c_str(), IN_OPEN | IN_CLOSE_NOWRITE), 0)
      << "errno " << errno;
  const auto inputs = open_inputs(spec, {});
  ASSERT_TRUE(inputs) << inputs.error().message;
  EXPECT_EQ(inputs->shared_text, "");
  std::array<inotify_event, 16> events;  // of a watched file: without a name
  EXPECT_EQ(::read(watch.get(), events.data(), sizeof(events)),
            static_cast<ssize_t>(2 * sizeof(inotify_event)))
      << "it was opened and closed once";
}

/// A run from before tensorChunks and keyBlock were fields, with two heads.
class EarlierRunTest : public ::testing::Test {
 protected:
  EarlierRunTest() {
    const auto text = read_file(kept_ / "lone/engine.json", 1 << 20);
    auto spec = api::decode_engine(*text);
    EXPECT_TRUE(spec) << spec.error().message;
    spec_ = *std::move(spec);
    spec_.data.tokens = {(kept_ / "tokens/train").string()};
    spec_.data.validation.clear();
    spec_.numerics = {};
  }

  /// What its ranks would compute with.
  Result<api::NumericsSpec> resolved() const {
    TRAINYARD_ASSIGN(const Inputs inputs, open_inputs(spec_, checkpoints_));
    api::EngineSpec spec = spec_;
    TRAINYARD_TRY(resolve_spec(spec, inputs));
    return spec.numerics;
  }

  const std::filesystem::path kept_ = testing_support::source_path("tests/fixtures/formats/v1");
  std::filesystem::path checkpoints_ = kept_ / "lone/pvc/ckpt/kept";
  api::EngineSpec spec_;
};

constexpr api::NumericsSpec kEarlier{.mode = api::NumericsMode::kCanonical,
                                     .grain_tokens = 128,
                                     .key_block = 128,
                                     .tensor_chunks = 2};
constexpr api::NumericsSpec kOfNewRuns{.mode = api::NumericsMode::kCanonical,
                                       .grain_tokens = 16,
                                       .key_block = 128,
                                       .tensor_chunks = 0};

TEST_F(EarlierRunTest, GoesOnWithTheNumericsThatItsCheckpointWasTrainedWith) {
  EXPECT_EQ(resolved().value(), kEarlier);
  checkpoints_.clear();
  EXPECT_EQ(resolved().value(), kOfNewRuns);
}

TEST_F(EarlierRunTest, ItsStateTakesThemAlongAndItsWeightsDoNot) {
  checkpoints_ = "/nowhere";
  spec_.start_from = {.checkpoint = (kept_ / "lone/pvc/ckpt/kept/g2-step-0000000800").string()};
  EXPECT_EQ(resolved().value(), kEarlier);
  spec_.start_from->what = api::StartWhat::kWeights;
  EXPECT_EQ(resolved().value(), kOfNewRuns);
}

TEST_F(EarlierRunTest, HasNumericsOfItsOwnOnAGpu) {
  spec_.device = api::DeviceKind::kCuda;
  EXPECT_EQ(resolved().value(),
            (api::NumericsSpec{.mode = api::NumericsMode::kCanonical,
                               .tensor_chunks = 0,
                               .grain_sequences = spec_.batch.micro_sequences}));
  spec_.numerics.tensor_chunks = 2;
  EXPECT_EQ(resolved().value().tensor_chunks, 2);
}

TEST_F(EarlierRunTest, StaysOnProcessors) {
  EXPECT_EQ(device_of_run(spec_, checkpoints_), api::DeviceKind::kCpu);
  EXPECT_EQ(device_of_run(spec_, {}), std::nullopt) << "a new run";
  spec_.start_from = {.checkpoint = (kept_ / "lone/pvc/ckpt/kept/g2-step-0000000800").string()};
  EXPECT_EQ(device_of_run(spec_, "/nowhere"), api::DeviceKind::kCpu);
  spec_.start_from->what = api::StartWhat::kWeights;
  EXPECT_EQ(device_of_run(spec_, "/nowhere"), std::nullopt);
}

TEST_F(EarlierRunTest, IsGoneOnWithByEarlierProgramsUnlessTheyWouldDoItOtherwise) {
  const auto inputs = open_inputs(spec_, checkpoints_);
  ASSERT_TRUE(inputs) << inputs.error().message;
  spec_.device = api::DeviceKind::kCpu;
  ASSERT_TRUE(resolve_spec(spec_, *inputs));
  EXPECT_TRUE(api::is_of_version_1(spec_));
  const std::pair<const char*, std::function<void(api::EngineSpec&)>> others[] = {
      {"family", [](api::EngineSpec& s) { s.model.family = api::ModelFamily::kLlama; }},
      {"tieEmbeddings", [](api::EngineSpec& s) { s.model.tie_embeddings = false; }},
      {"headDim", [](api::EngineSpec& s) { s.model.head_dim = 2 * s.model.hidden; }},
      {"attentionBias", [](api::EngineSpec& s) { s.model.attention_bias = false; }},
      {"ffnBias", [](api::EngineSpec& s) { s.model.ffn_bias = false; }},
      {"ropeTheta", [](api::EngineSpec& s) { s.model.rope_theta = api::kRopeTheta; }},
      {"ropeScaling", [](api::EngineSpec& s) { s.model.rope_scaling.emplace(); }},
      {"slidingWindow", [](api::EngineSpec& s) { s.model.sliding_window = 8; }},
      {"tensor", [](api::EngineSpec& s) { s.parallelism.tensor = 2; }},
      {"context", [](api::EngineSpec& s) { s.parallelism.context = 2; }},
      {"sequenceParallel", [](api::EngineSpec& s) { s.parallelism.sequence_parallel = true; }},
      {"earlyStopPatience", [](api::EngineSpec& s) { s.evaluation.early_stop_patience = 1; }},
      {"documents", [](api::EngineSpec& s) { s.data.documents = api::Documents::kIsolate; }},
      {"device", [](api::EngineSpec& s) { s.device = api::DeviceKind::kCuda; }},
      {"mode", [](api::EngineSpec& s) { s.numerics.mode = api::NumericsMode::kFast; }},
      {"grainTokens", [](api::EngineSpec& s) { s.numerics.grain_tokens = 16; }},
      {"keyBlock", [](api::EngineSpec& s) { s.numerics.key_block = 64; }},
      {"tensorChunks", [](api::EngineSpec& s) { s.numerics.tensor_chunks = 0; }},
      {"grainSequences", [](api::EngineSpec& s) { s.numerics.grain_sequences = 1; }},
  };
  for (const auto& [field, set] : others) {
    api::EngineSpec other = spec_;
    set(other);
    EXPECT_FALSE(api::is_of_version_1(other)) << field;
  }
}

TEST_F(EarlierRunTest, TakesNoOtherValue) {
  const auto refusal = [&] {
    const auto inputs = open_inputs(spec_, checkpoints_);
    EXPECT_TRUE(inputs) << inputs.error().message;
    const Status goes_on = check_goes_on(spec_, *inputs, checkpoints_);
    return goes_on ? std::string() : goes_on.error().message;
  };
  EXPECT_EQ(refusal(), "");
  spec_.numerics = kEarlier;
  EXPECT_EQ(refusal(), "");
  spec_.numerics = {.tensor_chunks = 0};
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.tensorChunks: found 0, wanted 2 as in the "
                                   "checkpoint g2-step-0000000800, from which the run resumes; put "
                                   "that back, or train with the new value as another job"));
  spec_.numerics = {.grain_tokens = 16};
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.grainTokens: found 16, wanted 128"));
  spec_.numerics = {.key_block = 64};
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.keyBlock: found 64, wanted 128"));
}

TEST(ResolveTest, NumericsThatDoNotFitHowTheWorkIsDividedAreRefusedWithThoseThatDo) {
  api::EngineSpec spec;
  spec.model = {.layers = 1, .hidden = 12, .heads = 6, .vocab = 9, .max_positions = 4096};
  spec.data.sequence_length = 4096;
  const auto resolved = [&] {
    api::EngineSpec copy = spec;
    const Status done = resolve_spec(copy, std::nullopt);
    EXPECT_TRUE(done) << done.error().message;
    return copy.numerics;
  };
  const auto refusal = [&] {
    api::EngineSpec copy = spec;
    return resolve_spec(copy, std::nullopt).error().message;
  };
  EXPECT_EQ(resolved().grain_tokens, 1024);
  EXPECT_EQ(resolved().tensor_chunks, 0);
  spec.parallelism.tensor = 2;
  EXPECT_EQ(resolved().tensor_chunks, 6) << "the heads";
  spec.parallelism.context = 4;
  spec.model.heads = 8;
  EXPECT_EQ(resolved().grain_tokens, 512);
  spec.numerics.grain_tokens = 96;
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.grainTokens: found 96, wanted a divisor of "
                                   "data.sequenceLength (4096) / (2 x parallelism.context (4)), "
                                   "such as 64 or 128"));
  spec.numerics.grain_tokens = 2048;
  EXPECT_THAT(refusal(), HasSubstr("such as 512;"));
  spec.numerics = {.tensor_chunks = 7};
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.tensorChunks: found 7, wanted a multiple of "
                                   "parallelism.tensor (2), such as 6 or 8"));
  spec.numerics.tensor_chunks = 0;  // as of a run that began with one tensor rank
  EXPECT_THAT(refusal(), HasSubstr("engine.numerics.tensorChunks: found 0, wanted a multiple of"));
}

TEST(ResolveTest, AGrainIsOfOneSliceOfASequence) {
  api::EngineSpec spec;
  spec.model = {.layers = 1, .hidden = 96, .heads = 6, .vocab = 9, .max_positions = 4620};
  spec.parallelism.tensor = 3;
  spec.parallelism.sequence_parallel = true;
  const auto resolve = [&] { return resolve_spec(spec, std::nullopt); };
  ASSERT_TRUE(resolve());
  EXPECT_EQ(spec.data.sequence_length, 4620);
  EXPECT_EQ(spec.numerics.grain_tokens, 770) << "the largest divisor of 1,540 up to 1,024";
  spec.numerics.grain_tokens = 1000;
  EXPECT_EQ(
      resolve().error().message,
      "engine.numerics.grainTokens: found 1000, wanted a divisor of data.sequenceLength (4620) / "
      "parallelism.tensor (3) with sequenceParallel, such as 770 or 1540; it never changes: set it "
      "from the start if the run may have sequenceParallel or more tensor ranks later");
  spec.data.sequence_length = 4619;
  EXPECT_EQ(resolve().error().message,
            "engine.data.sequenceLength: found 4619, wanted a multiple of parallelism.tensor (3) "
            "with sequenceParallel, such as 4617 or 4620");
}

TEST(ResolveTest, AShapeBesideAnImportSaysWhatTheImportSays) {
  const api::ModelSpec from{.family = api::ModelFamily::kLlama,
                            .layers = 1,
                            .hidden = 12,
                            .heads = 6,
                            .kv_heads = 2,
                            .head_dim = 2,
                            .ffn = 32,
                            .vocab = 9,
                            .max_positions = 16,
                            .tie_embeddings = false};
  const auto resolve = [&](api::ModelSpec given) {
    given.import_path = "folder";
    api::EngineSpec spec{.model = std::move(given)};
    const Status done = resolve_spec(spec, from);
    return done ? std::string(api::name_of(spec.model.family)) + " with " +
                      std::to_string(spec.model.kv_heads)
                : done.error().message;
  };
  EXPECT_EQ(resolve({}), "Llama with 2");
  EXPECT_EQ(resolve({.family = api::ModelFamily::kLlama, .heads = 6, .kv_heads = 2}),
            "Llama with 2");
  EXPECT_EQ(resolve({.kv_heads = 3}),
            "engine.model.kvHeads: found 3, but the imported model says 2; leave the field out");
  EXPECT_EQ(resolve({.family = api::ModelFamily::kMistral}),
            "engine.model.family: found Mistral, but the imported model says Llama; leave the "
            "field out");
}

TEST(ResolveTest, AGpuCountsBySequencesAndProcessorsByTokens) {
  api::EngineSpec spec;
  spec.model = {.layers = 1, .hidden = 128, .heads = 2, .vocab = 9, .max_positions = 64};
  spec.data.sequence_length = 64;
  spec.batch = {.global_sequences = 8, .micro_sequences = 4};
  spec.device = api::DeviceKind::kCuda;
  const auto resolve = [&] { return resolve_spec(spec, std::nullopt); };
  ASSERT_TRUE(resolve());
  EXPECT_EQ(spec.numerics.grain_sequences, 4);
  EXPECT_EQ(spec.numerics.grain_tokens, 0);
  EXPECT_EQ(spec.numerics.key_block, 0);
  // The next generation has what the checkpoint of this one holds.
  spec.numerics = api::with_values_of({}, api::as_trained(spec));
  spec.batch.micro_sequences = 8;
  ASSERT_TRUE(resolve());
  EXPECT_EQ(spec.numerics.grain_sequences, 4);
  spec.batch.micro_sequences = 2;
  EXPECT_EQ(
      resolve().error().message,
      "engine.numerics.grainSequences: found 4, wanted a divisor of batch.microSequences (2)");
  // Where that is on processors, all is as in a new run.
  spec.numerics =
      api::with_values_of({}, api::moved_to(api::as_trained(spec), api::DeviceKind::kCpu));
  spec.device = api::DeviceKind::kCpu;
  spec.parallelism.tensor = 2;
  ASSERT_TRUE(resolve());
  EXPECT_EQ(spec.numerics, (api::NumericsSpec{.mode = api::NumericsMode::kCanonical,
                                              .grain_tokens = 64,
                                              .key_block = 128,
                                              .tensor_chunks = 2}));
}

TEST(ResolveTest, AGpuCutsSumsIntoAPieceForEachTensorRank) {
  api::EngineSpec spec;
  spec.model = {.layers = 1, .hidden = 512, .heads = 8, .vocab = 9, .max_positions = 64};
  spec.batch = {.global_sequences = 8, .micro_sequences = 4};
  spec.device = api::DeviceKind::kCuda;
  spec.parallelism.tensor = 2;
  const auto pieces = [](api::EngineSpec of) {
    const Status done = resolve_spec(of, std::nullopt);
    return done ? of.numerics.tensor_chunks : std::nullopt;
  };
  EXPECT_EQ(pieces(spec), 2);
  // What a checkpoint of such a run holds is kept, with fewer ranks, too.
  ASSERT_TRUE(resolve_spec(spec, std::nullopt));
  const api::NumericsSpec stored = api::as_trained(spec);
  api::EngineSpec next = spec;
  next.parallelism.tensor = 1;
  next.numerics = api::with_values_of({}, api::moved_to(stored, next.device));
  EXPECT_EQ(pieces(next), 2);
  next.parallelism.tensor = 4;
  EXPECT_EQ(
      resolve_spec(next, std::nullopt).error().message.substr(0, 87),
      "engine.numerics.tensorChunks: found 2, wanted a multiple of parallelism.tensor (4), suc");
  // One that began uncut stays so.
  api::EngineSpec uncut = spec;
  uncut.parallelism.tensor = 1;
  uncut.numerics = {};
  ASSERT_TRUE(resolve_spec(uncut, std::nullopt));
  uncut.numerics = api::with_values_of({}, api::moved_to(api::as_trained(uncut), uncut.device));
  EXPECT_EQ(pieces(uncut), 0);
  uncut.parallelism.tensor = 2;
  EXPECT_EQ(
      resolve_spec(uncut, std::nullopt).error().message.substr(0, 87),
      "engine.numerics.tensorChunks: found 0, wanted a multiple of parallelism.tensor (2), suc");
  // Processors cut as a new run does.
  next.device = api::DeviceKind::kCpu;
  next.numerics = api::with_values_of({}, api::moved_to(stored, next.device));
  EXPECT_EQ(pieces(next), 8);
  // Fp32 sums have what the ranks have.
  spec.numerics = {.mode = api::NumericsMode::kFast};
  EXPECT_EQ(pieces(spec), 2);
  ASSERT_TRUE(resolve_spec(spec, std::nullopt));
  EXPECT_EQ(api::as_trained(spec).tensor_chunks, std::nullopt);
  spec.parallelism.tensor = 1;
  EXPECT_EQ(pieces(spec), 0);
}

}  // namespace
}  // namespace trainyard::engine
