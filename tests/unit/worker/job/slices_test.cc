// Nobody holds a whole tensor to import, export, store, restore or hash a model: slices, and pieces
// of at most 16 MiB.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/encode.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/worker/checkpoint/job_directory.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/device/cpu_device.h"
#include "worker/hf/export_checkpoint.h"
#include "worker/job/engine_state.h"
#include "worker/job/import_export.h"
#include "worker/matrix/world.h"
#include "worker/model/family.h"

namespace trainyard::engine {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;
constexpr int kRanks = 2;

class SlicesTest : public ::testing::Test {
 protected:
  SlicesTest() {
    spec_ = matrix::prime_spec(api::NumberFormat::kFP32);
    spec_.model = {
        .layers = 1, .hidden = 64, .heads = 2, .ffn = 96, .vocab = 80'001, .max_positions = 29};
    spec_.data.tokens = {"tokens/train"};  // named in the checkpoint, never opened
    auto complete = api::decode_engine(api::encode_engine(spec_));
    EXPECT_TRUE(complete) << complete.error().message;
    spec_ = *std::move(complete);
  }

  /// Of both ranks while they do `work`, each with an engine of its own part. Engines are there
  /// before the count begins.
  template <class Work>
  int64_t largest_allocation(const Work& work) {
    comm::testing::World world = comm::testing::make_world(comm::TransportKind::kLocal, kRanks);
    int64_t largest = 0;
    checkpoint::testing::run_ranks(kRanks, [&](checkpoint::CommitGroup& group) {
      const auto ranks_met = world.connect(group.rank());
      ASSERT_TRUE(ranks_met) << ranks_met.error().message;
      const comm::Groups groups = comm::Groups::of_data_ranks(**ranks_met);
      const auto device = *make_cpu_device();
      const auto engine =
          Engine::create({.spec = spec_, .device = device.get(), .groups = &groups});
      ASSERT_TRUE(engine) << engine.error().message;
      EngineState state(**engine);
      ASSERT_TRUE(group.any(false));
      if (group.rank() == 0) test::take_largest_allocation();
      ASSERT_TRUE(group.any(false));
      const Status done = work(state, group);
      EXPECT_TRUE(done) << "rank " << group.rank() << ": " << done.error().message;
      ASSERT_TRUE(group.any(false));
      if (group.rank() == 0) largest = test::take_largest_allocation();
    });
    return largest;
  }

  static std::string hash_of(EngineState& state) {
    const auto hash = state.hash();
    EXPECT_TRUE(hash) << hash.error().message;
    return hash ? to_hex(*hash) : "";
  }

  api::EngineSpec spec_;
  checkpoint::PosixFileSystem files_;
  checkpoint::testing::JobDirectory job_;
  const testing_support::TemporaryDirectory folder_;
};

TEST_F(SlicesTest, AModelGoesOutAndInWithoutAWholeTensor) {
  const Model model = build_model(spec_.model).value();
  int64_t tensor = 0;
  for (const ParamSpec& param : model.params)
    tensor = std::max(tensor, param.elements() * static_cast<int64_t>(sizeof(float)));
  ASSERT_GT(tensor, kPieceBytes) << "or the bounds below say nothing";

  const std::filesystem::path exported = folder_.path() / "from the engine";
  std::string hash;
  EXPECT_LE(largest_allocation([&](EngineState& state, checkpoint::CommitGroup& group) -> Status {
              EXPECT_TRUE(state.engine().initialize());
              const std::string own = hash_of(state);
              if (group.rank() == 0) hash = own;
              TRAINYARD_TRY(export_hugging_face(state, exported, "job-uid-1", {}));
              TRAINYARD_ASSIGN(
                  const auto started,
                  checkpoint::start_generation(files_, job_.plan(1, std::nullopt), group, {}));
              checkpoint::CheckpointWriter writer(checkpoint::testing::borrowed(files_), group,
                                                  {.root = job_.root()}, started);
              TRAINYARD_ASSIGN(checkpoint::Snapshot snapshot, state.snapshot());
              TRAINYARD_TRY(writer.begin(std::move(snapshot)));
              const auto outcome = writer.wait(std::chrono::minutes(10));
              return outcome ? outcome->status : Error{ErrorCode::kDeadline, "the checkpoint"};
            }),
            kPieceBytes)
      << "hashing, exporting and storing";

  EXPECT_LE(largest_allocation([&](EngineState& state, checkpoint::CommitGroup&) -> Status {
              TRAINYARD_ASSIGN(const auto imported, hf::load_model(exported));
              TRAINYARD_TRY(import_parameters(*imported, state.engine()));
              EXPECT_EQ(hash_of(state), hash) << "of what was imported";
              return {};
            }),
            kPieceBytes)
      << "importing";

  EXPECT_LE(largest_allocation([&](EngineState& state, checkpoint::CommitGroup&) -> Status {
              TRAINYARD_ASSIGN(const auto reader,
                               checkpoint::open_newest_good(files_, job_.root(), std::nullopt,
                                                            checkpoint::Verify::kAll, nullptr));
              TRAINYARD_TRY(state.restore(*reader));
              EXPECT_EQ(hash_of(state), hash) << "of what was restored";
              return {};
            }),
            kPieceBytes)
      << "restoring";

  test::take_largest_allocation();
  const auto reader = checkpoint::open_newest_good(files_, job_.root(), std::nullopt,
                                                   checkpoint::Verify::kManifest, nullptr);
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(to_hex(checkpoint::state_hash_of(**reader).value()), hash);
  const std::filesystem::path again = folder_.path() / "from the checkpoint";
  const auto told = hf::export_checkpoint(**reader, again);
  ASSERT_TRUE(told) << told.error().message;
  EXPECT_LE(test::take_largest_allocation(), kPieceBytes) << "hashing and exporting a checkpoint";
  const auto one = hf::load_model(exported);
  const auto other = hf::load_model(again);
  ASSERT_TRUE(one && other);
  for (const ParamSpec& param : model.params) {
    const layout::Rectangle whole{std::vector<int64_t>(param.tensor.shape.size(), 0),
                                  param.tensor.shape};
    std::vector<float> found(static_cast<size_t>(param.elements()));
    std::vector<float> wanted = found;
    ASSERT_TRUE((*one)->read(param, whole, wanted));
    ASSERT_TRUE((*other)->read(param, whole, found));
    EXPECT_EQ(found, wanted) << param.name();
  }
}

}  // namespace
}  // namespace trainyard::engine
