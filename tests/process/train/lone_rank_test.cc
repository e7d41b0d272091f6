// trainyard-worker as a pod runs it, by itself: nobody has looked at its inputs before, so what is
// wrong with them must end it with the code and the words that help.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/hash/hash.h"
#include "common/worker_contract.h"
#include "tests/support/byte_vocabulary.h"
#include "tests/support/child_process.h"
#include "tests/support/exact.h"
#include "tests/support/extent.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_engine.h"
#include "worker/data/text/tokenizer.h"
#include "worker/data/token_writer.h"
#include "worker/hf/model_folder.h"
#include "worker/trace/recorder.h"

namespace trainyard {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing_support::ChildEnd;
using testing_support::ChildProcess;
using testing_support::same_hash;
using testing_support::TemporaryDirectory;
using testing_support::tiny_engine;

constexpr std::chrono::seconds kDeadline{120};
constexpr int64_t kBytes = 257;  // the vocabulary of the tokenizer "bytes"

struct Ended {
  int exit_code = -1;
  std::string out;
  std::string err;
};

class LoneRankTest : public ::testing::Test {
 protected:
  LoneRankTest() { write_tokens("train", kBytes, "bytes"); }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }

  /// A folder of one shard: 4096 tokens that count through the vocabulary, each of `bytes` of text.
  void write_tokens(const std::string& name, int64_t vocabulary, const std::string& tokenizer,
                    int32_t bytes = 1) const {
    auto writer = data::TokenWriter::create(
        path(name),
        {.token_bytes = 4,
         .vocabulary = vocabulary,
         .tokenizer = tokenizer,
         .tokenizer_hash = tokenizer == "bytes" ? data::open_tokenizer("bytes").value()->identity()
                                                : xxh3_128(std::as_bytes(std::span(tokenizer))),
         .token_lengths = std::vector<int32_t>(static_cast<size_t>(vocabulary), bytes)});
    ASSERT_TRUE(writer) << writer.error().message;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < 4096; ++i)
      tokens.push_back(static_cast<int32_t>(i * 37 % vocabulary));
    ASSERT_TRUE(writer->append(tokens));
    ASSERT_TRUE(writer->finish());
  }

  /// A folder of the model of engine() with weights up to that number, no two neighbours alike.
  void write_model(const std::string& name, float weight, double epsilon = 1e-5) const {
    write_model(name, weight,
                api::ModelSpec{.layers = 1,
                               .hidden = 16,
                               .heads = 2,
                               .ffn = 64,
                               .vocab = kBytes,
                               .max_positions = 16,
                               .layer_norm_epsilon = epsilon});
  }
  void write_model(const std::string& name, float weight, const api::ModelSpec& spec) const {
    const Status written = hf::export_model(
        path(name), spec, [&](const engine::ParamSpec& param, const hf::UsePiece& use) {
          std::vector<float> values(static_cast<size_t>(param.elements()));
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = weight * static_cast<float>(i * 7919 % 1009 + 1) / 1009;
          return use(values);
        });
    ASSERT_TRUE(written) << written.error().message;
  }
  json importing(const std::string& model, int64_t steps) const {
    json spec = engine(steps);
    spec["model"] = {{"import", path(model)}};
    return spec;
  }

  json engine(int64_t steps) const { return tiny_engine(path("train"), steps); }

  Ended run(const std::vector<std::string>& argv,
            std::map<std::string, std::string> environment = {}) const {
    ChildProcess::Spec spec;
    spec.argv = argv;
    spec.argv.front() = testing_support::program_path(argv.front());
    spec.environment = std::move(environment);
    spec.output = path("out");
    spec.errors = path("err");
    ChildProcess child(spec);
    const std::optional<ChildEnd> end = child.wait(kDeadline);
    return {end && end->signal == 0 ? end->exit_code : -1, content("out"), content("err")};
  }
  Ended trainyard(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "trainyard");
    return run(arguments);
  }
  /// A rank that trains by that configuration, with its checkpoints in "checkpoints".
  Ended rank(const json& engine) const {
    std::ofstream(path("engine.json")) << engine;
    return run({"trainyard-worker"}, {{contract::kEnvEngineConfig, path("engine.json")},
                                      {contract::kEnvCheckpointDir, path("checkpoints")}});
  }
  Ended validate(const json& engine) const {
    std::ofstream(path("job.yaml")) << json{{"engine", engine}};
    return trainyard({"validate", path("job.yaml")});
  }
  static json job_of(const json& engine) {
    return {
        {"apiVersion", "trainyard.dev/v1alpha1"},
        {"kind", "TrainingJob"},
        {"metadata", {{"name", "tiny"}}},
        {"spec",
         {{"numNodes", 1},
          {"engine", engine},
          {"checkpointPolicy", {{"storage", {{"persistentVolumeClaim", {{"claimName", "c"}}}}}}},
          {"failurePolicy", {{"backoff", {{"initialSeconds", 1}, {"maxSeconds", 1}}}}}}}};
  }
  /// `trainyard run`; its summary in `summary`.
  Ended run_job(const json& job, json& summary, std::map<std::string, std::string> environment,
                const std::vector<std::string>& options) const {
    std::ofstream(path("job.yaml")) << job;
    std::vector<std::string> argv = {"trainyard", "run", path("job.yaml"), "-o", "json"};
    argv.insert(argv.end(), options.begin(), options.end());
    Ended ended = run(argv, std::move(environment));
    std::istringstream lines(ended.out);
    for (std::string line; std::getline(lines, line);) {
      const json object = json::parse(line, nullptr, false);
      if (object.is_object() && object.value("type", "") == "summary") summary = object;
    }
    return ended;
  }
  /// The same with restarts at once, in the run directory "run".
  Ended train(const json& engine, json& summary,
              std::map<std::string, std::string> environment = {},
              const std::string& run_dir = "run") const {
    return run_job(job_of(engine), summary, std::move(environment), {"--run-dir", path(run_dir)});
  }
  std::string content(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  const TemporaryDirectory folder_;
};

TEST_F(LoneRankTest, HeldOutTokensThatTheModelDoesNotKnowAreRefusedByName) {
  write_tokens("gpt2", 50257, "gpt2");
  json spec = engine(3);
  spec["data"]["validation"] = {path("gpt2")};
  Ended ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("engine.data.validation: found shards of 50257"));

  ASSERT_EQ(rank(engine(3)).exit_code, contract::kExitDone) << content("err");
  ended = trainyard({"evaluate", path("checkpoints"), path("gpt2")});
  EXPECT_EQ(ended.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(ended.err, HasSubstr(path("gpt2") + ": found shards of 50257"));
  EXPECT_EQ(trainyard({"evaluate", path("checkpoints"), path("train")}).exit_code, 0);
}

TEST_F(LoneRankTest, ARunIsEvaluatedOnItsOwnHeldOutSet) {
  write_tokens("held", kBytes, "bytes");
  write_tokens("more", kBytes, "bytes");
  json spec = engine(3);
  spec["data"]["validation"] = {path("held"), path("more")};
  json summary;
  ASSERT_EQ(train(spec, summary).exit_code, contract::kExitDone) << content("err");
  const Ended own = trainyard({"evaluate", path("run"), "-o", "json"});
  ASSERT_EQ(own.exit_code, 0) << own.err;
  const json scores = json::parse(own.out);
  EXPECT_EQ(scores["step"], 3);
  EXPECT_EQ(scores["device"], "Cpu");
  ASSERT_EQ(scores["sets"].size(), 1U);
  EXPECT_EQ(scores["sets"][0]["set"], path("held") + ", " + path("more"));
  const Ended named =
      trainyard({"evaluate", path("run"), path("held"), path("more"), "-o", "json"});
  const json apart = json::parse(named.out)["sets"];
  ASSERT_EQ(apart.size(), 2U);
  EXPECT_EQ(scores["sets"][0]["windows"], (2 * 4096 - 1) / 16) << "they are one text";
  EXPECT_NEAR(scores["sets"][0]["lossNatsPerToken"].get<double>(),
              apart[0]["lossNatsPerToken"].get<double>(), 0.01);

  std::filesystem::remove_all(path("more"));
  const Ended gone = trainyard({"evaluate", path("run")});
  EXPECT_NE(gone.exit_code, 0);
  EXPECT_THAT(gone.err, HasSubstr("this path is the run's data.validation"));
  ASSERT_EQ(train(engine(3), summary, {}, "without").exit_code, contract::kExitDone);
  const Ended none = trainyard({"evaluate", path("without")});
  EXPECT_EQ(none.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(none.err, HasSubstr(" is of a run without data.validation: name a set of held-out"));
}

TEST_F(LoneRankTest, FiguresOfAnEvaluationThatAreNoNumbersAreNotWrittenAsSuch) {
  write_tokens("unsized", kBytes, "bytes", 0);
  write_model("model", 0.2F);
  write_model("steep", 30.0F);
  const auto evaluated = [&](const std::string& model, const std::string& set,
                             const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"evaluate", path(model), path(set), "--sequences", "8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = trainyard(arguments);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended;
  };
  Ended ended = evaluated("model", "unsized", {"-o", "json"});
  const json set = json::parse(ended.out)["sets"][0];
  EXPECT_TRUE(set.at("bitsPerByte").is_null()) << set.dump();
  EXPECT_GT(set.value("lossNatsPerToken", 0.0), 0);
  EXPECT_THAT(ended.err, HasSubstr(path("unsized") + ": bits per byte are not known"));
  ended = evaluated("model", "unsized", {});
  EXPECT_THAT(ended.out, HasSubstr(" nats/token, bits/byte not known, perplexity "));
  ended = evaluated("steep", "train", {});
  EXPECT_THAT(ended.out, HasSubstr(" bits/byte, perplexity above 1e308, "));
}

TEST_F(LoneRankTest, ATrainedModelKnowsItsTokenizer) {
  ASSERT_EQ(rank(engine(3)).exit_code, contract::kExitDone) << content("err");
  write_tokens("other", 200, "other");
  json vocabulary;
  std::ifstream(testing_support::source_path("tests/fixtures/tokenizer/added_tokens.json")) >>
      vocabulary;
  std::ofstream(path("tokenizer.json")) << vocabulary["tokenizer"];
  const std::string checkpoints = path("checkpoints");
  const std::string exported = path("exported");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"evaluate", checkpoints, path("other")},
        {"sample", checkpoints, "--tokens", "4", "--tokenizer", path("tokenizer.json")},
        {"export", "--checkpoint", checkpoints, "--hugging-face", exported, "--tokenizer",
         path("tokenizer.json")}}) {
    const Ended ended = trainyard(arguments);
    EXPECT_EQ(ended.exit_code, contract::kExitBadConfig) << arguments[0];
    EXPECT_THAT(ended.err, HasSubstr("wanted")) << arguments[0];
    EXPECT_THAT(ended.err, HasSubstr("bytes (749d21c2a2f44dae367e90697101348e)")) << arguments[0];
  }
  EXPECT_FALSE(std::filesystem::exists(exported));
  EXPECT_EQ(trainyard({"sample", checkpoints, "--tokens", "4", "--top-k", "1"}).exit_code, 0);
  const Ended refused = trainyard({"sample", checkpoints, "--device", "Cuda"});
  EXPECT_EQ(refused.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(refused.err, HasSubstr("--device: found Cuda, wanted Auto or Cpu: this program was"));
  const Ended ended =
      trainyard({"export", "--checkpoint", checkpoints, "--hugging-face", exported});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("without tokenizer files: bytes are their own ids"));
  EXPECT_EQ(json::parse(content("exported/config.json"))["eos_token_id"], 0);
}

TEST_F(LoneRankTest, AnExportSaysWhatTheImportSaid) {
  write_model("imported", 0.2F);
  json config = json::parse(content("imported/config.json"));
  config["eos_token_id"] = 2;
  config["pad_token_id"] = 3;
  std::ofstream(path("imported/config.json")) << config;
  std::ofstream(path("imported/generation_config.json")) << R"({"top_k": 5})";
  json spec = importing("imported", 3);
  spec["export"] = {{"huggingFace", path("by-run")}};
  json summary;
  ASSERT_EQ(train(spec, summary).exit_code, 0) << content("err");
  ASSERT_EQ(trainyard({"export", "--checkpoint", path("run"), "--hugging-face", path("by-hand")})
                .exit_code,
            0)
      << content("err");
  for (const std::string folder : {"by-run", "by-hand"}) {
    const json exported = json::parse(content(folder + "/config.json"));
    EXPECT_EQ(exported["eos_token_id"], 2) << folder;
    EXPECT_EQ(exported["pad_token_id"], 3) << folder;
    EXPECT_EQ(json::parse(content(folder + "/generation_config.json")), json({{"top_k", 5}}));
  }
}

TEST_F(LoneRankTest, HeldOutTokensOfAnotherTokenizerAreRefusedEverywhere) {
  // Their ids fit the model: only the tokenizer tells that the loss would mean nothing.
  write_tokens("other", 200, "other");
  json spec = engine(3);
  spec["data"]["validation"] = {path("other")};
  for (const Ended& ended : {rank(spec), validate(spec)}) {
    EXPECT_EQ(ended.exit_code, contract::kExitBadConfig);
    EXPECT_THAT(ended.out + ended.err,
                HasSubstr("engine.data.validation: found tokens of tokenizer other"));
  }
  spec["data"]["validation"] = {path("train")};
  EXPECT_EQ(validate(spec).exit_code, 0);
}

TEST_F(LoneRankTest, AnImportOfWhatIsNoNumberIsRefusedByTensor) {
  write_model("broken", std::numeric_limits<float>::quiet_NaN());
  const Ended ended = rank(importing("broken", 3));
  EXPECT_EQ(ended.exit_code, contract::kExitBadData);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("import: tensor "));
}

TEST_F(LoneRankTest, TokensThatAnImportedModelDoesNotReadAreToldOf) {
  write_model("gpt", 0.5F);
  write_tokens("few", 200, "few");
  json spec = importing("gpt", 3);
  Ended ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_THAT(ended.err, ::testing::Not(HasSubstr("engine.data.tokens")));
  std::filesystem::remove_all(path("checkpoints"));
  spec["data"]["tokens"] = {path("few")};
  ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("made with tokenizer few"));
  EXPECT_THAT(ended.err, HasSubstr("is it the model's tokenizer?"));
  // Where the model brings its tokenizer, that one tells: these tokens have as many ids.
  std::filesystem::remove_all(path("checkpoints"));
  spec["data"]["tokens"] = {path("train")};
  std::ofstream(path("gpt/vocab.json")) << testing_support::byte_vocabulary();
  std::ofstream(path("gpt/merges.txt")) << "#version: 0.2\n";
  ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("not with the one in " + path("gpt")));
}

TEST_F(LoneRankTest, TheDropoutOfAnImportIsNotTakenAndThatIsTold) {
  api::ModelSpec config{.layers = 1,
                        .hidden = 16,
                        .heads = 2,
                        .ffn = 64,
                        .vocab = kBytes,
                        .max_positions = 16,
                        .dropout = 0.125};
  write_model("gpt", 0.5F, config);
  json spec = importing("gpt", 3);
  Ended ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("engine.model.dropout counts, not the import's"));
  EXPECT_THAT(ended.err, HasSubstr("0.125"));
  std::filesystem::remove_all(path("checkpoints"));
  spec["model"]["dropout"] = 0.125;
  ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_THAT(ended.err, ::testing::Not(HasSubstr("not the import's")));
}

TEST_F(LoneRankTest, AnImportThatTakesMoreMemoryThanThereIsIsRefusedWithBothSizes) {
  write_model("wide", 0.01F,
              api::ModelSpec{.layers = 1,
                             .hidden = 256,
                             .heads = 16,
                             .ffn = 64,
                             .vocab = kBytes,
                             .max_positions = 4095});
  // Its shape stands in its folder alone: half a tebibyte of activations.
  json spec = importing("wide", 3);
  spec["data"]["sequenceLength"] = 4095;
  spec["batch"] = {{"globalSequences", 65536}, {"microSequences", 65536}};
  json summary;
  const Ended ended = train(spec, summary);
  EXPECT_EQ(ended.exit_code, contract::kExitBadConfig) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("engine.model: found one that needs "));
  EXPECT_FALSE(std::filesystem::exists(path("run")));
  // A micro-batch is never larger than the rank's share, whatever it may be.
  spec["data"]["sequenceLength"] = 512;
  spec["batch"]["globalSequences"] = 2;
  const Ended small = train(spec, summary);
  EXPECT_EQ(small.exit_code, contract::kExitDone) << small.err;
  EXPECT_EQ(summary["peakMemory"]["rank"], 0);
  EXPECT_GT(summary["peakMemory"]["plannedBytes"], 0);
  EXPECT_GT(summary["peakMemory"]["measuredBytes"], 0);
}

TEST_F(LoneRankTest, ItsMemoryIsThePlannedWhateverItsMicroBatches) {
  if (testing_support::kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts as the rank's";
  json spec = engine(1);
  spec["model"]["layers"] = 12;
  spec["data"]["sequenceLength"] = 4;
  spec["data"]["validation"] = {path("train")};
  spec["evaluation"] = {{"sequences", 64}};
  spec["runtime"] = {{"threads", 1}};
  int64_t first = 0;
  for (const int micro_batches : {1, 64, 4096}) {
    SCOPED_TRACE(micro_batches);
    spec["batch"] = {{"globalSequences", micro_batches}, {"microSequences", 1}};
    json summary;
    const Ended ended = train(spec, summary, {}, "run" + std::to_string(micro_batches));
    ASSERT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
    const auto measured = summary["peakMemory"]["measuredBytes"].get<int64_t>();
    EXPECT_LE(measured, summary["peakMemory"]["plannedBytes"].get<int64_t>() / 100 * 105);
    if (first == 0) first = measured;
    EXPECT_LE(measured, first + (int64_t{4} << 20)) << "nothing is kept for each micro-batch";
  }
}

TEST_F(LoneRankTest, NorDoesAPeerInAPipelineTakeMoreThanIsPlanned) {
  if (testing_support::kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts as the rank's";
  json spec = engine(1);
  spec["model"]["layers"] = 24;
  spec["model"]["hidden"] = 8;
  spec["data"]["sequenceLength"] = 4;
  spec["runtime"] = {{"threads", 1}};
  spec["batch"] = {{"globalSequences", 4096}, {"microSequences", 1}};
  // All micro-batches go forward before the first goes back.
  spec["parallelism"] = {{"pipeline", 2}, {"pipelineSchedule", "GPipe"}};
  json job = job_of(spec);
  job["spec"]["numProcPerNode"] = 2;
  json summary;
  const Ended ended = run_job(job, summary, {}, {"--run-dir", path("run")});
  ASSERT_EQ(ended.exit_code, contract::kExitDone) << ended.err;
  EXPECT_LE(summary["peakMemory"]["measuredBytes"].get<int64_t>(),
            summary["peakMemory"]["plannedBytes"].get<int64_t>() / 100 * 105);
}

TEST_F(LoneRankTest, ItsTraceIsInThePlan) {
  if (testing_support::kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts as the rank's";
  json spec = engine(3000);
  json summary;
  ASSERT_EQ(run_job(job_of(spec), summary, {}, {"--run-dir", path("traced"), "--trace"}).exit_code,
            contract::kExitDone);
  const auto planned = summary["peakMemory"]["plannedBytes"].get<int64_t>();
  EXPECT_LE(summary["peakMemory"]["measuredBytes"].get<int64_t>(), planned / 100 * 105);
  ASSERT_EQ(train(spec, summary, {}, "untraced").exit_code, contract::kExitDone);
  EXPECT_EQ(planned - summary["peakMemory"]["plannedBytes"].get<int64_t>(),
            2 * trace::Recorder::kRingBytes);
}

TEST_F(LoneRankTest, ARunThatSkipsEveryStepFailsAndSaysSo) {
  write_model("diverged", 1e30F);
  Ended ended = rank(importing("diverged", 500));
  EXPECT_EQ(ended.exit_code, contract::kExitBadData);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("the last 100 steps, to step 100, were skipped"));
  std::filesystem::remove_all(path("checkpoints"));
  ended = rank(importing("diverged", 5));  // fewer than it waits for: it must not count as trained
  EXPECT_EQ(ended.exit_code, contract::kExitBadData);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("the last 5 steps"));
}

TEST_F(LoneRankTest, ARankOpensAsManyFilesAsItsHardLimitAllows) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(200, before.rlim_max), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  std::ofstream(path("engine.json")) << engine(100'000'000);
  ChildProcess::Spec spec;
  spec.argv = {testing_support::program_path("trainyard-worker")};
  spec.environment = {{contract::kEnvEngineConfig, path("engine.json")}};
  spec.output = path("out");
  spec.errors = path("err");
  const ChildProcess child(spec);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit its{};
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  do {
    ASSERT_EQ(::prlimit(child.pid(), RLIMIT_NOFILE, nullptr, &its), 0);
  } while (its.rlim_cur != before.rlim_max && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(its.rlim_cur, before.rlim_max);
}

TEST_F(LoneRankTest, AFolderThatHoldsAnotherModelIsRefusedBeforeTheFirstStep) {
  write_model("theirs", 0.5F);
  json spec = engine(100'000'000);
  spec["export"] = {{"huggingFace", path("theirs")}};
  const Ended ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("engine.export.huggingFace: " + path("theirs")));
}

TEST_F(LoneRankTest, ARankThatDiesAfterItsExportCostsARestartAndNotTheJob) {
  json spec = engine(20);
  spec["export"] = {{"huggingFace", path("exported")}};
  json summary;
  const Ended ended = train(
      spec, summary,
      {{contract::kEnvFault, "0:1:done:kill"}, {contract::kEnvFaultJournal, path("journal")}});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_NE(content("journal"), "") << "or nobody has died";
  EXPECT_THAT(content("exported/model.safetensors"), HasSubstr("trainyard.jobUid"));
  // Another run has exported nothing yet, whatever its manifest is called.
  const Ended other = trainyard({"run", path("job.yaml"), "--run-dir", path("other")});
  EXPECT_EQ(other.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(other.err, HasSubstr("model.safetensors: exists already"));
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

TEST_F(LoneRankTest, ACheckpointKeepsTheEpsilonOfAnImport) {
  write_model("imported", 0.2F, 0.125);
  json spec = importing("imported", 3);
  spec["data"]["validation"] = {path("train")};
  spec["evaluation"] = {{"sequences", 8}};
  json summary;
  ASSERT_EQ(train(spec, summary).exit_code, 0) << content("err");
  const double in_training = summary.value("validationLoss", 0.0);
  ASSERT_GT(in_training, 0);

  Ended ended =
      trainyard({"evaluate", path("run"), path("train"), "--sequences", "8", "-o", "json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_DOUBLE_EQ(json::parse(ended.out)["sets"][0].value("lossNatsPerToken", 0.0), in_training);

  ended = trainyard({"export", "--checkpoint", path("run"), "--hugging-face", path("exported")});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(json::parse(content("exported/config.json")).value("layer_norm_epsilon", 0.0), 0.125);

  spec["model"]["layerNormEpsilon"] = 0.5;
  ended = rank(spec);
  EXPECT_EQ(ended.exit_code, contract::kExitBadConfig);
  EXPECT_THAT(ended.out + ended.err, HasSubstr("engine.model.layerNormEpsilon: found 0.5, but the "
                                               "imported model says 0.125"));
}

TEST_F(LoneRankTest, WhatReadsTheNewestCheckpointStepsBackFromADamagedShard) {
  json job = job_of(engine(10));
  job["spec"]["checkpointPolicy"]["everySteps"] = 5;
  json summary;
  ASSERT_EQ(run_job(job, summary, {}, {"--run-dir", path("run")}).exit_code, 0) << content("err");
  const std::filesystem::path newest =
      std::filesystem::path(summary.value("checkpointDir", "")) / "g1-step-0000000010";
  std::fstream shard(newest / "shard-0-of-1.safetensors",
                     std::ios::in | std::ios::out | std::ios::binary);
  // Behind the header: of the first tensor, which is read first, all bits are turned.
  shard.seekp(4096);
  shard << std::string(64, '\xff');
  shard.close();
  ASSERT_TRUE(shard);

  const auto json_of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"-o", "json"});
    const Ended ended = trainyard(arguments);
    EXPECT_EQ(ended.exit_code, 0) << arguments[0] << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("skipped " + newest.string() + ": shard-0-of-1"));
    return json::parse(ended.out, nullptr, false);
  };
  EXPECT_EQ(json_of({"sample", path("run"), "--tokens", "4", "--tokenizer", "bytes"})["step"], 5);
  EXPECT_EQ(json_of({"evaluate", path("run"), path("train"), "--sequences", "2"})["step"], 5);
  EXPECT_EQ(
      json_of({"export", "--checkpoint", path("run"), "--hugging-face", path("exported")})["step"],
      5);
  const Ended named = trainyard({"sample", newest.string(), "--tokens", "4"});
  EXPECT_EQ(named.exit_code, contract::kExitBadData);
  EXPECT_THAT(named.err, HasSubstr(newest.string() + ": shard-0-of-1.safetensors: chunk 0"));
}

TEST_F(LoneRankTest, ARunWithACheckpointNeedsTheFolderThatItImportedNoMore) {
  write_model("imported", 0.2F, 0.125);
  json job = job_of(importing("imported", 20));
  job["spec"]["checkpointPolicy"]["everySteps"] = 5;
  for (const char* failure : {"Application", "Infrastructure"}) {
    job["spec"]["failurePolicy"]["budgets"].push_back(json{{"class", failure}, {"maxRestarts", 0}});
  }
  json undisturbed;
  ASSERT_EQ(run_job(job, undisturbed, {}, {"--run-dir", path("undisturbed")}).exit_code, 0)
      << content("err");
  json summary;
  const std::map<std::string, std::string> killed = {{contract::kEnvFault, "0:1:12.0:kill"}};
  ASSERT_EQ(run_job(job, summary, killed, {"--run-dir", path("run")}).exit_code, 1)
      << content("err");
  std::filesystem::remove_all(path("imported"));
  const Ended ended = run_job(job, summary, {}, {"--run-dir", path("run"), "--retry"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err << summary;
  EXPECT_TRUE(same_hash(summary.value("stateHash", ""), undisturbed.value("stateHash", "")));

  // Where nothing has been trained, there is nothing else to begin with.
  const Ended nowhere = run_job(job, summary, {}, {"--run-dir", path("other")});
  EXPECT_EQ(nowhere.exit_code, contract::kExitBadData);
  EXPECT_THAT(nowhere.err, HasSubstr("engine.model.import: "));
  EXPECT_THAT(nowhere.err, HasSubstr(path("imported")));
}

TEST_F(LoneRankTest, ARunEndsWithItsLossesWhereverItWasDisturbedLast) {
  json spec = engine(20);
  spec["data"]["validation"] = {path("train")};
  spec["evaluation"] = {{"everySteps", 19}, {"sequences", 8}};
  json undisturbed;
  ASSERT_EQ(train(spec, undisturbed, {}, "undisturbed").exit_code, 0) << content("err");
  ASSERT_TRUE(undisturbed["finalLoss"].is_number()) << undisturbed;
  ASSERT_TRUE(undisturbed["validationLoss"].is_number()) << undisturbed;
  // Killed when all is done but said, so that it goes on from its last step; asked to stop in the
  // evaluation before the last step, so that it stops there or at the end of the next step.
  for (const std::string fault : {"0:1:done:kill", "0:1:evaluating:term"}) {
    SCOPED_TRACE(fault);
    std::filesystem::remove(path("journal"));
    json summary;
    const Ended ended =
        train(spec, summary,
              {{contract::kEnvFault, fault}, {contract::kEnvFaultJournal, path("journal")}},
              "run" + fault.substr(fault.rfind(':') + 1));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_NE(content("journal"), "") << "or nothing has happened";
    EXPECT_EQ(summary["finalLoss"], undisturbed["finalLoss"]);
    EXPECT_EQ(summary["validationLoss"], undisturbed["validationLoss"]);
    EXPECT_TRUE(same_hash(summary.value("stateHash", ""), undisturbed.value("stateHash", "")));
  }
}

}  // namespace
}  // namespace trainyard
