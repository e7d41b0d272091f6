#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/commands.h"
#include "common/api/decode.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

class ConvertCommandTest : public testing::Test {
 protected:
  int convert(const std::string& text, const std::vector<std::string>& more = {}) {
    const std::string file = (folder_.path() / "ds_config.json").string();
    std::ofstream(file) << text;
    std::vector<std::string> arguments = {"convert", file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream out;
    std::ostringstream err;
    const int code = run(arguments, out, err);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  /// The engine of the manifest that was printed; its faults are those of features to come.
  api::EngineSpec engine() const {
    return api::check_training_job(out_, {.file = "job.yaml"}).job.spec.engine.value();
  }

  std::string out_;
  std::string err_;

 private:
  const testing_support::TemporaryDirectory folder_;
};

TEST_F(ConvertCommandTest, TakesOverWhatAManifestCanSay) {
  ASSERT_EQ(convert(R"({
  # how much
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,   // on 8 ranks
  "steps_per_print": 10,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1,},},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-4,
    "warmup_num_steps": 100, "total_num_steps": 5000, "warmup_type": "linear"}},
  "gradient_clipping": 1.0,
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
  "zero_optimization": {"stage": 1, "overlap_comm": true, "reduce_bucket_size": 5e8},
  "url": "a#b//c",
})"),
            0)
      << err_;
  const api::EngineSpec made = engine();
  EXPECT_EQ(api::error_of(api::check_training_job(out_, {.file = ""}).faults).message, "");
  EXPECT_EQ(made.batch.global_sequences, 64);
  EXPECT_EQ(made.batch.micro_sequences, 4);
  EXPECT_THAT(out_, HasSubstr("numProcPerNode: 8"));
  EXPECT_EQ(made.steps, 5000);
  EXPECT_EQ(made.optimizer.learning_rate, 2e-4) << "warmup_max_lr counts";
  EXPECT_EQ(made.learning_rate_schedule.name, api::ScheduleName::kLinear);
  EXPECT_EQ(made.learning_rate_schedule.warmup_steps, 100);
  EXPECT_EQ(made.learning_rate_schedule.min_ratio, 0);
  EXPECT_EQ(made.precision.compute, api::NumberFormat::kBF16);
  EXPECT_EQ(made.parallelism.zero_stage, 1);
  EXPECT_THAT(err_, HasSubstr("note: zero_optimization.overlap_comm"));
  EXPECT_THAT(err_, HasSubstr("note: url: unknown key"));
  EXPECT_THAT(err_, testing::Not(HasSubstr("loss_scale")));
}

TEST_F(ConvertCommandTest, Fp16AndOffloadBecomeTheirFields) {
  ASSERT_EQ(
      convert(
          R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1024, "hysteresis": 2},
    "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5}},
    "zero_optimization": {"stage": 2, "cpu_offload": true}})",
          {"--steps", "20"}),
      0)
      << err_;
  const api::EngineSpec made = engine();
  EXPECT_EQ(made.precision.compute, api::NumberFormat::kFP16);
  EXPECT_EQ(made.precision.loss_scale, 1024);
  EXPECT_EQ(made.parallelism.offload, std::vector<api::Offload>{api::Offload::kOptimizer});
  EXPECT_EQ(made.learning_rate_schedule.name, api::ScheduleName::kCosine);
  EXPECT_EQ(made.optimizer.gradient_clip, 0) << "theirs is off unless it is told";
  EXPECT_THAT(err_, HasSubstr("fp16.hysteresis"));
  ASSERT_EQ(convert(R"({"train_batch_size": 8, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true}, "offload_param": {"device": "cpu"}}})",
                    {"--steps", "20"}),
            0)
      << err_;
  EXPECT_EQ(engine().parallelism.offload.size(), 2U);
}

TEST_F(ConvertCommandTest, WhatTheFileLeavesOutIsTheirDefault) {
  ASSERT_EQ(convert(R"({"train_batch_size": 16, "optimizer": {"type": "AdamW"},
    "scheduler": {"type": "WarmupLR"}})",
                    {"--steps", "5000"}),
            0)
      << err_;
  const api::EngineSpec made = engine();
  EXPECT_EQ(made.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(made.optimizer.betas[1], 0.999);
  EXPECT_EQ(made.optimizer.weight_decay, 0);
  EXPECT_EQ(made.learning_rate_schedule.warmup_steps, 1000);
  EXPECT_THAT(err_, HasSubstr("warmup_type: log (its default)"));
  EXPECT_THAT(err_, HasSubstr("number of ranks: computed as 16"));
  ASSERT_EQ(convert(R"({"train_batch_size": 16, "scheduler": {"type": "WarmupDecayLR",
    "params": {"warmup_num_steps": 0, "total_num_steps": "auto"}}})",
                    {"--steps", "50"}),
            0)
      << err_;
  EXPECT_EQ(engine().learning_rate_schedule.warmup_steps, 0);
}

TEST_F(ConvertCommandTest, WhatNoManifestMaySayIsRefused) {
  EXPECT_EQ(convert(R"({"train_batch_size": 8, "bf16": {"enabled": "auto"}})", {"--steps", "5"}),
            64);
  EXPECT_THAT(err_, HasSubstr("bf16.enabled: found \"auto\", wanted true or false"));
  EXPECT_EQ(
      convert(R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": -1}}})",
              {"--steps", "5"}),
      64);
  EXPECT_THAT(err_, HasSubstr("learningRate: found -1"));
  const std::string small = R"({"train_batch_size": 8})";
  EXPECT_EQ(convert(small, {"--steps", "5", "--preset", "gpt2-124m}, seed: 7, m: {a: b"}), 64);
  EXPECT_EQ(convert(small, {"--steps", "5", "--tokens", "a\xff"}), 64);
  EXPECT_EQ(convert(small, {"--steps", "5", "--ranks", "16"}), 64);
  EXPECT_THAT(err_, HasSubstr("train_batch_size: found 8, wanted 16"));
}

TEST_F(ConvertCommandTest, EveryFaultIsNamed) {
  EXPECT_EQ(convert(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1, "bf16": {"enabled": true}, "fp16": {"enabled": true},
    "optimizer": {"type": "Lamb", "params": {"lr": "auto"}},
    "zero_optimization": {"stage": 4, "offload_param": {"device": "nvme"}}})",
                    {"--ranks", "2"}),
            64);
  for (const char* fault :
       {"train_batch_size: found 10, wanted 8: train_micro_batch_size_per_gpu (4) x",
        "optimizer.type: found Lamb", "optimizer.params.lr: found \"auto\"",
        "zero_optimization.stage: found 4", "offload_param.device: found nvme",
        "bf16.enabled: found true together with", "--steps: found nothing"}) {
    EXPECT_THAT(err_, HasSubstr(fault));
  }
  EXPECT_EQ(out_, "");
  EXPECT_EQ(convert(R"({"train_batch_size": 8,, })", {"--steps", "1"}), 65);
  EXPECT_THAT(err_, HasSubstr("ds_config.json"));
  EXPECT_EQ(convert(R"({"train_batch_size": 0.5})", {"--steps", "1"}), 64);
}

TEST_F(ConvertCommandTest, DeeplyNestedConfigurationsAreRefused) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_EQ(convert("{\"scheduler\": " + deep + "}", {"--steps", "1"}), 65);
  EXPECT_THAT(err_, HasSubstr("ds_config.json: not JSON: nested too deeply, beyond 32 levels"));
}

}  // namespace
}  // namespace trainyard::cli
