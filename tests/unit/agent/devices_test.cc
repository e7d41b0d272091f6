#include "agent/devices.h"

#include <fstream>

#include <gtest/gtest.h>

#include "common/api/encode.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::agent {
namespace {

TEST(DevicesTest, OfTheEngineIsWhatItsConfigurationSays) {
  const testing_support::TemporaryDirectory folder;
  const auto config = folder.path() / "engine.json";
  EXPECT_EQ(device_of_engine(config), api::DeviceKind::kAuto);
  api::EngineSpec engine;
  engine.model.preset = "gpt2-124m";
  engine.data.tokens = {"/data/a.tokens"};
  engine.batch.global_sequences = 1;
  engine.steps = 1;
  engine.device = api::DeviceKind::kCpu;
  std::ofstream(config) << api::encode_engine(engine);
  EXPECT_EQ(device_of_engine(config), api::DeviceKind::kCpu);
}

}  // namespace
}  // namespace trainyard::agent
