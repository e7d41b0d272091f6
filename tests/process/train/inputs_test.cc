// What becomes of damaged, shared and moved inputs, by whole programs that train.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <signal.h>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/run_fixture.h"

namespace trainyard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::content_of;
using testing_support::program_path;
using testing_support::RunFixture;

class InputsTest : public RunFixture {
 protected:
  static Environment real_worker() {
    return {{"TRAINYARD_WORKER", program_path("trainyard-worker")}};
  }

  void replace(const std::string& what, const std::string& with) const {
    std::string manifest = content_of(folder() / "job.yaml");
    manifest.replace(manifest.find(what), what.size(), with);
    write("job.yaml", manifest);
  }

  /// `trainyard run job.yaml --run-dir run` in a folder, its output beside it.
  std::unique_ptr<ChildProcess> run_in(const fs::path& place) const {
    ChildProcess::Spec spec;
    spec.argv = {program_path("trainyard"), "run",    (place / "job.yaml").string(), "--run-dir",
                 (place / "run").string(),  "--plain"};
    spec.environment = environment(real_worker());
    spec.output = place / "out";
    spec.errors = place / "err";
    return std::make_unique<ChildProcess>(spec);
  }
};

TEST_F(InputsTest, ADamagedShardFailsTheJobAtOnce) {
  std::fstream shard(folder() / "data/train/00000.tokens",
                     std::ios::in | std::ios::out | std::ios::binary);
  shard.seekp(300);
  shard << "??";  // of the vocabulary
  shard.close();
  const auto run = start(real_worker());
  expect_end(*run, 65);
  EXPECT_EQ(summary().value("outcome", ""), "Failed");
  EXPECT_EQ(summary().value("restarts", -1), 0) << output();
  EXPECT_THAT(output(), HasSubstr("data/train/00000.tokens: payload chunk 0"));
  expect_nothing_left();
}

// Three nodes of a rank each, of which two hold the stages.
TEST_F(InputsTest, AnElasticJobStartsAtTheLargestSizeThatItsStagesAllow) {
  replace("numNodes: 1", "numNodes: 3\n  elasticPolicy: {minNodes: 1}");
  replace("numProcPerNode: 2", "numProcPerNode: 1");
  replace("layers: 1", "layers: 2");
  replace("    steps:", "    parallelism: {pipeline: 2}\n    steps:");
  const auto run = start(real_worker());
  expect_end(*run, 0);
  EXPECT_EQ(status()["membership"].value("worldSize", 0), 2) << status().dump(1);
  expect_nothing_left();
}

TEST_F(InputsTest, ASetThatIsDamagedIsNotEvaluated) {
  const auto run = start(real_worker());
  expect_end(*run, 0);
  fs::copy(folder() / "data", folder() / "copy", fs::copy_options::recursive);
  const fs::path shard = folder() / "copy/train/00000.tokens";
  const auto bytes = fs::file_size(shard);
  fs::resize_file(shard, bytes / 2);  // an interrupted copy into a file of the whole size
  fs::resize_file(shard, bytes);
  const std::string job = checkpoints().string();
  EXPECT_EQ(trainyard({"evaluate", job, (folder() / "data/train").string()}).exit_code, 0);
  EXPECT_EQ(trainyard({"evaluate", job, (folder() / "copy/train").string()}).exit_code, 65);
  EXPECT_THAT(errors(), HasSubstr("copy/train/00000.tokens: checksum table"));
}

TEST_F(InputsTest, AGroupSharesWhatTheUmaskGivesIt) {
  const mode_t before = ::umask(002);
  const ChildEnd prepared = trainyard({"data", "prepare", (folder() / "text.txt").string(), "--out",
                                       (folder() / "shared/data").string()});
  EXPECT_EQ(prepared.exit_code, 0) << errors();
  const auto run = start(real_worker(), {"--trace=2"});
  expect_end(*run, 0);
  const ChildEnd exported = trainyard({"export", "--checkpoint", checkpoints().string(),
                                       "--hugging-face", (folder() / "shared/model").string()});
  EXPECT_EQ(exported.exit_code, 0) << errors();
  ::umask(before);
  size_t seen = 0;
  for (const fs::path& root : {run_dir(), folder() / "shared"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      if (entry.is_symlink()) continue;
      ++seen;
      const auto wanted = entry.is_directory() ? fs::perms(0775) : fs::perms(0664);
      EXPECT_EQ(entry.status().permissions(), wanted) << entry.path();
    }
  }
  EXPECT_GT(seen, 20u);
}

TEST_F(InputsTest, AModelOfAPaddedVocabularyIsSampled) {
  replace("vocab: 257", "vocab: 4096");
  replace("steps: 50", "steps: 2");
  const auto run = start(real_worker());
  expect_end(*run, 0);
  const ChildEnd sampled = trainyard(
      {"sample", checkpoints().string(), "--prompt", "The ", "--tokens", "50", "--seed", "1"});
  EXPECT_EQ(sampled.exit_code, 0) << errors();
  EXPECT_EQ(output().size(), 4u + 50u + 1u) << "each token is a byte";
}

TEST_F(InputsTest, HeldOutTextThatIsTrainedOnIsTold) {
  replace("tokens: [data/train]", "tokens: [data/train], validation: [data/train]");
  const ChildEnd valid = trainyard({"validate", (folder() / "job.yaml").string()});
  EXPECT_EQ(valid.exit_code, 0) << errors();
  EXPECT_THAT(output(), HasSubstr("warning: engine.data.validation: found 1 of its 1 shards"));
  const auto run = start(real_worker());
  expect_end(*run, 0);
  EXPECT_THAT(output(), HasSubstr("engine.data.validation: found 1 of its 1 shards among those"));
}

TEST_F(InputsTest, ARunFromAnImportGoesOnWhereItIsMovedAndCopiedTo) {
  const auto trained = start(real_worker());
  expect_end(*trained, 0);
  const fs::path first = folder() / "first";
  fs::create_directory(first);
  fs::rename(folder() / "data", first / "data");
  ASSERT_EQ(trainyard({"export", "--checkpoint", checkpoints().string(), "--hugging-face",
                       (first / "base").string()})
                .exit_code,
            0)
      << errors();
  replace("{family: GPT2, layers: 1, hidden: 16, heads: 2, vocab: 257, maxPositions: 16}",
          "{import: base}");
  replace("steps: 50", "steps: 1000000");
  fs::rename(folder() / "job.yaml", first / "job.yaml");

  const auto has_checkpoint_of = [](const fs::path& place, const std::string& generation) {
    std::error_code code;
    for (const auto& entry : fs::directory_iterator(place / "run/pvc/ckpt/tiny", code)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(generation) && fs::exists(entry.path() / "manifest.json")) return true;
    }
    return false;
  };
  const auto trains_in = [&](const fs::path& place, const std::string& generation) {
    const auto run = run_in(place);
    EXPECT_TRUE(wait_until([&] { return has_checkpoint_of(place, generation); }))
        << content_of(place / "out") << content_of(place / "err");
    run->signal(SIGINT);
    EXPECT_TRUE(run->wait(kDeadline));
    return content_of(place / "out");
  };
  trains_in(first, "g1-");
  fs::rename(first, folder() / "second");
  EXPECT_THAT(trains_in(folder() / "second", "g2-"), Not(HasSubstr("have changed")));
  fs::copy(folder() / "second", folder() / "third", fs::copy_options::recursive);
  EXPECT_THAT(trains_in(folder() / "third", "g3-"), Not(HasSubstr("have changed")));
}

}  // namespace
}  // namespace trainyard
