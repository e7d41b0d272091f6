// Documents that share a window see nothing of each other.

#include "worker/data/documents.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/comm/worker/comm/world.h"
#include "worker/device/cpu_device.h"
#include "worker/engine/engine.h"
#include "worker/matrix/matrix.h"

namespace trainyard::engine {
namespace {

using matrix::StreamBatches;

/// One window, of which some targets count.
class OneWindow final : public data::MicroBatchSource {
 public:
  OneWindow(std::vector<int32_t> tokens, size_t first, size_t end) : tokens_(std::move(tokens)) {
    targets_.assign(tokens_.size(), -1);
    for (size_t i = first; i < end; ++i)
      targets_[i] = i + 1 < tokens_.size() ? tokens_[i + 1] : 1;
    sample_ = {.length = std::ssize(tokens_)};
    data::add_documents(tokens_, StreamBatches::kEndOfText, 0, 0, documents_);
  }
  Result<data::MicroBatch> micro_batch(int) override {
    return data::MicroBatch{.rows = {.count = sample_.length, .sequences = documents_},
                            .samples = std::span(&sample_, 1),
                            .tokens = tokens_,
                            .targets = targets_};
  }
  void end_step() override {}

 private:
  std::vector<int32_t> tokens_, targets_;
  kernels::Sequence sample_;
  std::vector<kernels::Sequence> documents_;
};

class IsolatedDocumentsTest : public ::testing::TestWithParam<api::ModelFamily> {
 protected:
  void run(const std::function<void(Engine&)>& body) {
    api::EngineSpec spec = matrix::prime_spec(api::NumberFormat::kFP32, GetParam());
    spec.data.documents = api::Documents::kIsolate;
    comm::testing::run_world(comm::TransportKind::kLocal, 1, [&](comm::Communicator& world) {
      const auto device = *make_cpu_device();
      const comm::Groups groups = comm::Groups::of_data_ranks(world);
      const auto engine = Engine::create({.spec = spec, .device = device.get(), .groups = &groups});
      ASSERT_TRUE(engine) << engine.error().message;
      EXPECT_TRUE((*engine)->initialize());
      body(**engine);
    });
  }
  /// Of the targets of rows [first, end).
  static double loss(Engine& engine, const std::vector<int32_t>& tokens, size_t first, size_t end) {
    OneWindow window(tokens, first, end);
    const auto report = engine.evaluate(window, 1, 1);
    EXPECT_TRUE(report) << report.error().message;
    return report ? report->loss : 0;
  }
};
INSTANTIATE_TEST_SUITE_P(Families, IsolatedDocumentsTest,
                         ::testing::Values(api::ModelFamily::kGPT2, api::ModelFamily::kLlama),
                         [](const auto& tested) {
                           return tested.param == api::ModelFamily::kGPT2 ? "GPT2" : "Llama";
                         });

// Documents of 7, 10 and 5 tokens.
const std::vector<int32_t> kWindow = {5,  6,  7,  8,  9,  10, 11, 0,  21, 22, 23,
                                      24, 25, 26, 27, 28, 29, 0,  41, 42, 43, 44};
constexpr size_t kSecond = 7;
constexpr size_t kThird = 17;

TEST_P(IsolatedDocumentsTest, ChangingOneDocumentChangesNoBitOfAnothersLosses) {
  run([](Engine& engine) {
    const double of_first = loss(engine, kWindow, 0, kSecond);
    const double of_second = loss(engine, kWindow, kSecond, kThird);
    const double of_third = loss(engine, kWindow, kThird, kWindow.size());
    std::vector<int32_t> changed = kWindow;
    for (size_t i = kSecond + 1; i < kThird; ++i)
      changed[i] += 7;
    EXPECT_EQ(loss(engine, changed, 0, kSecond), of_first);
    EXPECT_NE(loss(engine, changed, kSecond, kThird), of_second);
    EXPECT_EQ(loss(engine, changed, kThird, kWindow.size()), of_third);
  });
}

TEST_P(IsolatedDocumentsTest, ADocumentHasTheLossesThatItHasAlone) {
  run([](Engine& engine) {
    const std::vector<int32_t> alone(kWindow.begin() + kSecond, kWindow.begin() + kThird);
    // Its last target is the next one's end of text, which it has not alone.
    EXPECT_EQ(loss(engine, kWindow, kSecond, kThird - 1), loss(engine, alone, 0, alone.size() - 1));
  });
}

}  // namespace
}  // namespace trainyard::engine
