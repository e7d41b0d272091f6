#include "worker/job/unused_parameters.h"

#include <gtest/gtest.h>

#include "common/api/presets.h"
#include "worker/model/family.h"

namespace trainyard::engine {
namespace {

Model model_of(const char* preset) {
  api::EngineSpec engine;
  EXPECT_TRUE(api::apply_preset(preset, engine.model));
  api::derive_defaults(engine);
  engine.model.vocab = 256;
  auto model = build_model(engine.model);
  EXPECT_TRUE(model) << model.error().message;
  return *std::move(model);
}

TEST(UnusedParametersTest, ArePositionsThatNoSequenceReaches) {
  EXPECT_EQ(unused_parameters(model_of("gpt2-3m"), 256), "");
  EXPECT_EQ(unused_parameters(model_of("gpt2-3m"), 64), "wpe: rows 64 to 255 of 256");
  EXPECT_EQ(unused_parameters(model_of("llama-1m"), 8), "") << "turned positions have no weights";
}

}  // namespace
}  // namespace trainyard::engine
