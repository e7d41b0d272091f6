#include "worker/job/engine_state.h"

#include <memory>
#include <string>
#include <sys/mman.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "common/base/unique_fd.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/device/cpu_device.h"
#include "worker/matrix/world.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;

/// One rank that trains on a stream of tokens, and the checkpoints it leaves.
class EngineStateTest : public ::testing::Test {
 protected:
  static constexpr char kTheirs[] = "0123456789abcdef0123456789abcdef";

  EngineStateTest() {
    spec_.data.tokens = {"tokens/train"};  // named in the checkpoint, never opened
    // As a rank gets it: with every default in its place.
    auto complete = api::decode_engine(api::encode_engine(spec_));
    EXPECT_TRUE(complete) << complete.error().message;
    spec_ = *std::move(complete);
    auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                         {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
    EXPECT_TRUE(world) << world.error().message;
    world_ = *std::move(world);
    groups_ = comm::Groups::of_data_ranks(*world_);
  }

  std::unique_ptr<Engine> make(const api::EngineSpec& spec) {
    devices_.push_back(*make_cpu_device());
    auto engine =
        Engine::create({.spec = spec, .device = devices_.back().get(), .groups = &groups_});
    EXPECT_TRUE(engine) << engine.error().message;
    if (!engine) return nullptr;
    EXPECT_TRUE((*engine)->initialize());
    return *std::move(engine);
  }

  void train(Engine& engine, int64_t steps) {
    const auto stream = matrix::make_token_stream(4096, spec_.model.vocab, 1);
    matrix::StreamBatches batches(stream, spec_, 1, 0);
    for (int64_t step = 0; step < steps; ++step) {
      batches.start_step(step);
      ASSERT_TRUE(engine.step(batches));
    }
  }

  /// A checkpoint of the state in generation 1.
  void save(EngineState& state) {
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

  Status restore(EngineState& state) {
    const auto reader = checkpoint::open_newest_good(files_, job_.root(), std::nullopt,
                                                     checkpoint::Verify::kAll, nullptr);
    if (!reader) return reader.error();
    return state.restore(**reader);
  }

  api::EngineSpec spec_ = matrix::prime_spec(api::NumberFormat::kFP32);
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<comm::Communicator> world_;
  comm::Groups groups_;
  checkpoint::PosixFileSystem files_;
  checkpoint::testing::JobDirectory job_;
};

TEST_F(EngineStateTest, WhatWasSavedIsThereAgain) {
  const auto trained = make(spec_);
  train(*trained, 2);
  EngineState state(*trained, kTheirs);
  save(state);
  const auto fresh = make(spec_);
  EngineState restored(*fresh, kTheirs);
  ASSERT_NE(to_hex(restored.hash().value()), to_hex(state.hash().value()));
  const Status status = restore(restored);
  ASSERT_TRUE(status) << status.error().message;
  EXPECT_EQ(to_hex(restored.hash().value()), to_hex(state.hash().value()));
}

/// In memory what an earlier rank has left at step 2, and on the disk step 1.
class EngineStateInMemoryTest : public EngineStateTest {
 protected:
  EngineStateInMemoryTest() : fd_(::memfd_create("states", MFD_CLOEXEC)) {
    const auto trained = make(spec_);
    train(*trained, 1);
    EngineState state(*trained, kTheirs);
    save(state);
    first_ = to_hex(state.hash().value());
    train(*trained, 1);
    EngineState kept(*trained, kTheirs);
    EXPECT_TRUE(kept.keep_in_memory(fd_.get(), "test"));
    kept.set_generation({1, "test", std::nullopt, checkpoint::kFromScratch, "0123456789abcdef"});
    const Status remembered = kept.remember();
    EXPECT_TRUE(remembered) << remembered.error().message;
    second_ = to_hex(kept.hash().value());
  }

  const UniqueFd fd_;
  std::string first_;
  std::string second_;
};

TEST_F(EngineStateInMemoryTest, WhatAnEarlierRankLeftIsThereAgain) {
  const auto fresh = make(spec_);
  EngineState state(*fresh, kTheirs);
  ASSERT_TRUE(state.keep_in_memory(fd_.get(), "test"));
  ASSERT_EQ(state.offers().size(), 1u);
  const Status recalled = state.recall(state.offers().front().id);
  ASSERT_TRUE(recalled) << recalled.error().message;
  EXPECT_EQ(state.step(), 2);
  EXPECT_EQ(to_hex(state.hash().value()), second_);
}

TEST_F(EngineStateInMemoryTest, ASnapshotAfterAnotherRestoreIsOfWhatWasTrainedSince) {
  const auto fresh = make(spec_);
  EngineState state(*fresh, kTheirs);
  ASSERT_TRUE(state.keep_in_memory(fd_.get(), "test"));
  ASSERT_TRUE(state.recall(state.offers().front().id));
  ASSERT_TRUE(restore(state)) << "as where another rank found its state damaged";
  EXPECT_EQ(to_hex(state.hash().value()), first_);
  state.set_generation({2, "test", 1, 1, "fedcba9876543210"});
  train(*fresh, 1);
  ASSERT_EQ(state.step(), 2);
  ASSERT_TRUE(state.remember());
  EXPECT_EQ(state.offers().front().id, (checkpoint::CheckpointId{2, 2}))
      << "not that of the generation before";
}

TEST_F(EngineStateInMemoryTest, NothingStaysOfAStateThatIsNotGoneOnFrom) {
  const auto untouched = make(spec_);
  const auto fresh = make(spec_);
  EngineState state(*fresh, kTheirs);
  ASSERT_TRUE(state.keep_in_memory(fd_.get(), "test"));
  ASSERT_TRUE(state.recall(state.offers().front().id));
  ASSERT_TRUE(state.start_over());
  EXPECT_TRUE(fresh->initialize());
  EXPECT_EQ(state.step(), 0);
  EXPECT_EQ(fresh->optimizer().updates(), 0);
  EXPECT_EQ(to_hex(state.hash().value()), to_hex(EngineState(*untouched, kTheirs).hash().value()));
}

TEST_F(EngineStateTest, ACheckpointOfOtherDataIsRefusedByBothNames) {
  const auto trained = make(spec_);
  train(*trained, 1);
  EngineState state(*trained, kTheirs);
  save(state);
  const auto fresh = make(spec_);
  const std::string ours = "fedcba9876543210fedcba9876543210";
  EngineState other(*fresh, ours);
  const Status status = restore(other);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(status.error().message,
              HasSubstr("engine.data.tokens: found tokens/train (" + ours +
                        "), wanted tokens/train (" + kTheirs + ") as in the checkpoint"));
  // Where the data is not known, as when text is sampled, nothing is compared.
  EngineState unknown(*fresh);
  EXPECT_TRUE(restore(unknown));
}

TEST_F(EngineStateTest, ACheckpointKeepsImportedFactsAndTheTokenizer) {
  const auto trained = make(spec_);
  const hf::RunFacts facts{.imported = {.config = R"({"eos_token_id":2})", .generation = ""},
                           .tokenizer = "gpt2-bpe",
                           .tokenizer_hash = "00ff"};
  EngineState state(*trained, kTheirs, facts);
  const auto snapshot = state.snapshot();
  ASSERT_TRUE(snapshot) << snapshot.error().message;
  const hf::RunFacts kept = hf::run_facts_of(snapshot->config_json);
  EXPECT_EQ(kept.imported, facts.imported);
  EXPECT_EQ(kept.tokenizer_hash, "00ff");
}

TEST_F(EngineStateTest, ACheckpointOfOtherImportedFactsIsRefusedByName) {
  const auto trained = make(spec_);
  EngineState state(*trained, kTheirs,
                    {.imported = {.config = R"({"eos_token_id":2})", .generation = ""}});
  save(state);
  const auto fresh = make(spec_);
  EngineState other(*fresh, kTheirs,
                    {.imported = {.config = R"({"eos_token_id":5})", .generation = ""}});
  const Status refused = restore(other);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidConfig);
  EXPECT_THAT(refused.error().message, HasSubstr("eos_token_id: found 5, wanted 2"));
}

TEST_F(EngineStateTest, ACheckpointOfAnotherRunIsRefusedByFieldAndBothValues) {
  const auto trained = make(spec_);
  EngineState state(*trained, kTheirs);
  train(*trained, 1);
  save(state);
  const auto refuses = [&](auto change, const std::string& what) {
    api::EngineSpec changed = spec_;
    change(changed);
    const auto fresh = make(changed);
    EngineState other(*fresh, kTheirs);
    const Status status = restore(other);
    ASSERT_FALSE(status) << what;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig);
    EXPECT_THAT(status.error().message,
                HasSubstr("engine." + what + " as in the checkpoint g1-step-0000000001"));
    EXPECT_THAT(status.error().message, HasSubstr("put that back, or train with the new value"));
  };
  refuses([](auto& spec) { spec.seed = 12; }, "seed: found 12, wanted 4711");
  refuses([](auto& spec) { spec.numerics.grain_tokens = 14; },
          "numerics.grainTokens: found 14, wanted 29");
  refuses([](auto& spec) { spec.numerics.key_block = 29; },
          "numerics.keyBlock: found 29, wanted 128");
  refuses([](auto& spec) { spec.numerics.tensor_chunks = 3; },
          "numerics.tensorChunks: found 3, wanted 0");
  refuses([](auto& spec) { spec.precision.compute = api::NumberFormat::kBF16; },
          "precision.compute: found BF16, wanted FP32");
  refuses([](auto& spec) { spec.precision.reduce = api::NumberFormat::kBF16; },
          "precision.reduce: found BF16, wanted FP32");
  refuses([](auto& spec) { spec.batch.global_sequences = 12; },
          "batch.globalSequences: found 12, wanted 11");
  refuses([](auto& spec) { spec.data.sequence_length = 28; },
          "data.sequenceLength: found 28, wanted 29");
  refuses([](auto& spec) { spec.data.documents = api::Documents::kIsolate; },
          "data.documents: found Isolate, wanted Join");
  refuses([](auto& spec) { spec.model.layer_norm_epsilon = 0.5; },
          "model.layerNormEpsilon: found 0.5, wanted 1e-05");
  refuses([](auto& spec) { spec.model.dropout = 0.5; }, "model.dropout: found 0.5, wanted 0.1");
  refuses([](auto& spec) { spec.model.max_positions += 3; },
          "model.maxPositions: found " + std::to_string(spec_.model.max_positions + 3) +
              ", wanted " + std::to_string(spec_.model.max_positions));
}

TEST_F(EngineStateTest, WhereAModelWasImportedFromAndHowItsSizesWereNamedIsNotWhatItIs) {
  spec_.model.import_path = "/first/base";
  const auto trained = make(spec_);
  EngineState state(*trained, kTheirs);
  train(*trained, 1);
  save(state);
  api::EngineSpec moved = spec_;
  moved.model.import_path = "/second/base";
  const auto fresh = make(moved);
  EngineState other(*fresh, kTheirs);
  const Status status = restore(other);
  EXPECT_TRUE(status) << status.error().message;
}

TEST_F(EngineStateTest, HowRanksDivideTheWorkMayChange) {
  const auto trained = make(spec_);
  EngineState state(*trained, kTheirs);
  train(*trained, 1);
  save(state);
  api::EngineSpec finer = spec_;
  finer.batch.micro_sequences = 1;
  api::EngineSpec sharded = spec_;
  sharded.parallelism = {.shard = 2, .zero_stage = 3};
  api::EngineSpec whole = spec_;
  whole.parallelism.zero_stage = 0;
  api::EngineSpec one_holds_all = whole;
  one_holds_all.parallelism.mode = api::ParallelMode::kDataParallel;
  for (const api::EngineSpec& changed : {finer, sharded, whole, one_holds_all}) {
    const auto fresh = make(changed);
    EngineState other(*fresh, kTheirs);
    const Status status = restore(other);
    EXPECT_TRUE(status) << status.error().message;
  }
}

}  // namespace
}  // namespace trainyard::engine
