#include "worker/sample/trained_model.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "kernels/cpu/cpu_limits.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/device/cpu_device.h"
#include "worker/hf/export_checkpoint.h"
#include "worker/job/engine_state.h"
#include "worker/matrix/world.h"
#include "worker/sample/generator.h"

namespace trainyard::engine {
namespace {

class TrainedModelTest : public ::testing::Test {
 protected:
  TrainedModelTest() {
    spec_.data.tokens = {"tokens/train"};  // named in the checkpoint, never opened
    spec_.model.max_positions = 64;
    spec_.data.sequence_length = 16;
  }

  /// As a rank makes it, with fresh weights.
  std::unique_ptr<Engine> make() {
    const auto complete = api::decode_engine(api::encode_engine(spec_));
    EXPECT_TRUE(complete) << complete.error().message;
    auto alone = comm::make_communicator(comm::TransportKind::kLocal,
                                         {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
    EXPECT_TRUE(alone) << alone.error().message;
    alone_.push_back(*std::move(alone));
    groups_.push_back(std::make_unique<comm::Groups>(comm::Groups::of_data_ranks(*alone_.back())));
    devices_.push_back(*make_cpu_device());
    auto engine = Engine::create(
        {.spec = *complete, .device = devices_.back().get(), .groups = groups_.back().get()});
    EXPECT_TRUE(engine) << engine.error().message;
    if (!engine) return nullptr;
    EXPECT_TRUE((*engine)->initialize());
    return *std::move(engine);
  }

  /// A checkpoint of the engine's state in generation 1.
  void save(Engine& engine) {
    EngineState state(engine);
    checkpoint::testing::run_ranks(1, [&](checkpoint::CommitGroup& group) {
      const auto started =
          checkpoint::start_generation(files_, job_.plan(1, std::nullopt), group,
                                       [](checkpoint::CheckpointReader&) { return Status(); });
      ASSERT_TRUE(started) << started.error().message;
      checkpoint::CheckpointWriter writer(checkpoint::testing::borrowed(files_), group,
                                          {job_.root(), {}, 256}, *started);
      auto snapshot = state.snapshot();
      ASSERT_TRUE(snapshot) << snapshot.error().message;
      ASSERT_TRUE(writer.begin(*std::move(snapshot)));
      const auto outcome = writer.wait(std::chrono::seconds(60));
      ASSERT_TRUE(outcome && outcome->status);
    });
  }

  static std::vector<int32_t> text_of(Engine& engine, int64_t tokens) {
    std::vector<int32_t> text;
    const Status generated =
        generate(engine, {1, 2, 3}, {.tokens = tokens, .temperature = 1}, [&](int32_t token) {
          text.push_back(token);
          return true;
        });
    EXPECT_TRUE(generated) << generated.error().message;
    return text;
  }

  api::EngineSpec spec_ = matrix::prime_spec(api::NumberFormat::kFP32);
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<comm::Communicator>> alone_;
  std::vector<std::unique_ptr<comm::Groups>> groups_;
  checkpoint::PosixFileSystem files_;
  checkpoint::testing::JobDirectory job_;
};

TEST_F(TrainedModelTest, IdsThatTheTokenizerHasNoTextForAreNotDrawn) {
  const auto engine = make();
  ASSERT_NE(engine, nullptr);
  constexpr int64_t kKnown = 4;
  ASSERT_GT(engine->model().vocab, 2 * kKnown);
  int32_t most = 0;
  const auto note = [&](int32_t token) {
    most = std::max(most, token);
    return true;
  };
  SampleOptions options{.tokens = 100, .temperature = 1};
  ASSERT_TRUE(generate(*engine, {1}, options, note));
  EXPECT_GE(most, kKnown) << "as this model draws without a tokenizer";
  most = 0;
  options.tokenizer_vocabulary = kKnown;
  ASSERT_TRUE(generate(*engine, {1}, options, note));
  EXPECT_LT(most, kKnown);
}

// One process could not train such batches: 5,000 micro-batches of one sequence are refused.
TEST_F(TrainedModelTest, TheRunsBatchesMayBeLargerThanOneProcessTakes) {
  spec_.batch = {.global_sequences = 5000, .micro_sequences = 64};
  const auto trained = make();
  ASSERT_NE(trained, nullptr);
  save(*trained);
  const auto reader = checkpoint::open_newest_good(files_, job_.root(), std::nullopt,
                                                   checkpoint::Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  const auto loaded = TrainedModel::load(**reader, {.threads = 1});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(text_of((*loaded)->engine(), 8), text_of(*trained, 8));
  const std::vector<int32_t> prompt = {5, 6, 7};
  const auto ours = (*loaded)->engine().next_logits(prompt);
  const auto theirs = trained->next_logits(prompt);
  ASSERT_TRUE(ours && theirs);
  EXPECT_TRUE(std::equal(ours->begin(), ours->end(), theirs->begin(), theirs->end()));
}

TEST_F(TrainedModelTest, AFolderIsTheModelThatItsCheckpointIs) {
  const auto trained = make();
  ASSERT_NE(trained, nullptr);
  save(*trained);
  const auto reader = checkpoint::open_newest_good(files_, job_.root(), std::nullopt,
                                                   checkpoint::Verify::kAll, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  const auto folder = job_.root() / "folder";
  const auto exported = hf::export_checkpoint(**reader, folder);
  ASSERT_TRUE(exported) << exported.error().message;
  const auto opened = hf::load_model(folder);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto loaded = TrainedModel::load(**opened, spec_.data.sequence_length, {.threads = 1});
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(text_of((*loaded)->engine(), 40), text_of(*trained, 40));
}

TEST_F(TrainedModelTest, PositionsThatWereNeverTrainedAreNotLookedAt) {
  const auto engine = make();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(context_tokens(*engine), 16);
  const std::vector<int32_t> before = text_of(*engine, 40);
  const auto& params = engine->model().params;
  for (size_t p = 0; p < params.size(); ++p) {
    if (params[p].name() != "wpe") continue;
    const auto positions = engine->states().weights().owned_fp32(static_cast<int>(p));
    std::fill(positions.begin() + 16 * spec_.model.hidden, positions.end(),
              std::numeric_limits<float>::quiet_NaN());
  }
  EXPECT_EQ(text_of(*engine, 40), before);
}

TEST_F(TrainedModelTest, AnImportedModelBringsItsPositions) {
  spec_.model.import_path = "somebody/gpt2";
  EXPECT_EQ(context_tokens(*make()), 64);
  // But no more than attention's kernels take: heads of 22 features count as 32.
  spec_.model.max_positions = 40'000;
  EXPECT_EQ(context_tokens(*make()), kernels::kMaxAttentionElements / 32);
}

}  // namespace
}  // namespace trainyard::engine
