#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/top/live_state.h"
#include "tests/support/byte_vocabulary.h"

namespace trainyard::cli {
namespace {

using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Outcome run_with(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  Outcome outcome;
  outcome.exit_code = run(arguments, out, err);
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

/// Of gpt2-3m, after the file's name.
constexpr char kNumerics[] =
    ": numerics of a new run on CPUs: Canonical, grainTokens 256, keyBlock 128, tensorChunks 0\n";

class ValidateCommandTest : public testing::Test {
 protected:
  ValidateCommandTest() {
    std::string pattern = testing::TempDir() + "validate_test.XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ValidateCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = std::filesystem::path(folder_) / name;
    std::ofstream(path) << text;
    return path.string();
  }
  std::string engine(const std::string& steps) {
    return "engine:\n  model: {preset: gpt2-3m}\n  data: {tokens: [a]}\n"
           "  batch: {globalSequences: 8}\n  steps: " +
           steps + "\n";
  }

  std::string folder_;
};

TEST_F(ValidateCommandTest, ValidFilesExitZero) {
  const std::string file = write("good.yaml", engine("5"));
  const Outcome outcome = run_with({"validate", file});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, file + ": valid (its data is not on this machine and was not checked)\n" +
                             file + kNumerics);
  EXPECT_EQ(outcome.err, "");
  const auto json = nlohmann::json::parse(run_with({"validate", "-o", "json", file}).out);
  EXPECT_EQ(json[0]["numerics"]["grainTokens"], 256);
  EXPECT_EQ(json[0]["numerics"]["tensorChunks"], 0);
}

/// A file from elsewhere neither moves the cursor nor shows another text than it has.
TEST_F(ValidateCommandTest, WhatAFileNamesIsShownWithoutControlCharacters) {
  for (const char* hostile : {"\\e]0;x\\a\\e[2J", "\\u009b2J", "\\u202egpj"}) {
    const std::string file = write("hostile.yaml", engine("5") + "\"key" + hostile + "\": 1\n");
    const Outcome outcome = run_with({"validate", file});
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_THAT(outcome.err, HasSubstr("key"));
    for (const char* character : {"\x1b", "\x07", "\u009b", "\u202e"})
      EXPECT_THAT(outcome.err, testing::Not(HasSubstr(character)));
  }
}

TEST_F(ValidateCommandTest, FaultsOfAllFilesArePrintedAndExit64) {
  const std::string good = write("good.yaml", engine("5"));
  const std::string bad = write("bad.yaml", engine("0\n  stepz: 5"));
  const Outcome outcome = run_with({"validate", bad, good});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(outcome.out, good + ": valid (its data is not on this machine and was not checked)\n" +
                             good + kNumerics);
  EXPECT_EQ(outcome.err,
            bad + ":5: engine.steps: found 0, wanted a number from 1 to 1000000000000\n" + bad +
                ":6: engine.stepz: found an unknown key, wanted steps\n");
}

TEST_F(ValidateCommandTest, JsonNamesLineAndField) {
  const std::string bad = write("bad.yaml", engine("0"));
  const Outcome outcome = run_with({"validate", "-o", "json", bad});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("\"valid\": false"));
  EXPECT_THAT(outcome.out, HasSubstr("\"line\": 5"));
  EXPECT_THAT(outcome.out, HasSubstr("\"field\": \"engine.steps\""));
}

TEST_F(ValidateCommandTest, AManifestMayComeThroughAPipe) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(pipe) << engine("5"); });
  const Outcome outcome = run_with({"validate", pipe});
  writer.join();
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("valid"));
}

/// A manifest whose pods are judged by an API server.
constexpr char kPodManifest[] =
    "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job, namespace: "
    "team}\n"
    "spec: {template: {spec: {containers: [{name: trainer, image: i, command: [run]}]}}}\n";

/// PATH with a folder first in which `kubectl` is this script, or with that folder alone.
class PathWithKubectl {
 public:
  PathWithKubectl(const std::string& folder, const std::string& script)
      : before_(std::getenv("PATH")) {
    if (!script.empty()) {
      std::ofstream(folder + "/kubectl") << "#!/bin/sh\n" << script;
      ::chmod((folder + "/kubectl").c_str(), 0700);
    }
    ::setenv("PATH", (script.empty() ? folder : folder + ":" + before_).c_str(), 1);
  }
  PathWithKubectl(const PathWithKubectl&) = delete;
  PathWithKubectl& operator=(const PathWithKubectl&) = delete;
  ~PathWithKubectl() { ::setenv("PATH", before_.c_str(), 1); }

 private:
  std::string before_;
};

TEST_F(ValidateCommandTest, SaysThatNoServerWasAsked) {
  const std::string file = write("job.yaml", kPodManifest);
  EXPECT_EQ(run_with({"validate", file}).out,
            file + ": valid (its pods were not checked by an API server; --server does this)\n");
  const PathWithKubectl path(folder_, "");
  const Outcome asked = run_with({"validate", "--server", file});
  EXPECT_EQ(asked.exit_code, 75);
  EXPECT_EQ(asked.out, file + ": valid (no API server was asked: kubectl is not on PATH)\n");
}

TEST_F(ValidateCommandTest, TheServerJudgesTheJobAndAPodOfIt) {
  const std::string file = write("job.yaml", kPodManifest);
  {
    const PathWithKubectl path(
        folder_, "echo \"$@\" >> " + folder_ + "/asked; cat >> " + folder_ + "/asked\n");
    EXPECT_EQ(run_with({"validate", "--server", file}).out, file + ": valid\n");
  }
  std::stringstream asked;
  asked << std::ifstream(folder_ + "/asked").rdbuf();
  EXPECT_THAT(asked.str(), testing::StartsWith("apply --dry-run=server"));
  EXPECT_THAT(asked.str(), HasSubstr("--namespace team"));
  EXPECT_THAT(asked.str(), HasSubstr(kPodManifest));
  EXPECT_THAT(asked.str(), HasSubstr(R"("kind":"Pod")"));
  EXPECT_THAT(asked.str(), HasSubstr(R"("name":"job-dry-run")"));
  const PathWithKubectl path(
      folder_,
      "grep -q '\"Pod\"' || exit 0; echo 'pods \"x\" is forbidden: no such class' >&2; exit 1\n");
  const Outcome refused = run_with({"validate", "--server", file});
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_EQ(refused.err,
            file + ": the API server refuses it: pods \"x\" is forbidden: no such class\n");
}

TEST_F(ValidateCommandTest, AServerThatIsNotReachedHasNotJudged) {
  const std::string file = write("job.yaml", kPodManifest);
  for (const std::string& words : std::vector<std::string>{
           "Unable to connect to the server: EOF",
           "error validating data: failed to download openapi: dial tcp: connection refused",
           "error: current-context is not set", "error: You must be logged in to the server"}) {
    const PathWithKubectl path(folder_, "echo '" + words + "' >&2; exit 1\n");
    const Outcome asked = run_with({"validate", "--server", file});
    EXPECT_EQ(asked.exit_code, 75) << words;
    EXPECT_THAT(asked.out, HasSubstr("no API server was asked: " + words));
  }
}

TEST_F(ValidateCommandTest, FoldersAndMissingFilesExit64) {
  const Outcome outcome = run_with({"validate", folder_, folder_ + "/none.yaml"});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("Is a directory"));
  EXPECT_THAT(outcome.err, HasSubstr("none.yaml"));
}

TEST_F(ValidateCommandTest, HoldsAManifestAgainstItsData) {
  const std::string text = write("text.txt", std::string(300, 'a'));
  ASSERT_EQ(run_with({"data", "prepare", text, "--out", folder_ + "/set"}).exit_code, 0);
  const auto manifest = [&](const std::string& positions, const std::string& vocab) {
    return write("job.yaml",
                 "engine:\n  model: {family: GPT2, layers: 1, hidden: 16, heads: 2, "
                 "maxPositions: " +
                     positions + vocab + "}\n" +
                     "  data: {tokens: [set/train]}\n"
                     "  batch: {globalSequences: 8}\n  steps: 5\n");
  };
  Outcome outcome = run_with({"validate", manifest("16", "")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr(": valid\n"));
  EXPECT_THAT(outcome.out, HasSubstr("Canonical, grainTokens 16, keyBlock 128, tensorChunks 0\n"));
  outcome = run_with({"validate", manifest("4096", "")});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("engine.data.sequenceLength: found 4096, wanted at most 300"));
  outcome = run_with({"validate", manifest("16", ", vocab: 5")});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("engine.model.vocab: found 5"));
}

TEST_F(ValidateCommandTest, AnExportThatWouldReplaceSomethingIsRefusedWithTheManifest) {
  const std::string text = write("text.txt", std::string(300, 'a'));
  ASSERT_EQ(run_with({"data", "prepare", text, "--out", folder_ + "/set"}).exit_code, 0);
  const std::string manifest =
      write("job.yaml",
            "engine:\n  model: {layers: 1, hidden: 16, heads: 2, maxPositions: 16}\n"
            "  data: {tokens: [set/train]}\n  batch: {globalSequences: 8}\n  steps: 5\n"
            "  export: {huggingFace: out}\n");
  EXPECT_EQ(run_with({"validate", manifest}).exit_code, 0) << "a folder to be made";
  std::filesystem::create_directory(folder_ + "/out");
  write("out/notes.txt", "mine");
  EXPECT_EQ(run_with({"validate", manifest}).exit_code, 0);
  write("out/config.json", "{\"model_type\": \"other\"}");
  const Outcome outcome = run_with({"validate", manifest});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr(manifest + ": engine.export.huggingFace: " + folder_ +
                                     "/out/config.json: exists already, and is not what the export "
                                     "would write; choose another folder"));
}

TEST_F(ValidateCommandTest, TheTokenizerMustBeThatOfTheTokens) {
  const std::string text = write("text.txt", std::string(300, 'a'));
  ASSERT_EQ(run_with({"data", "prepare", text, "--out", folder_ + "/set"}).exit_code, 0);
  const auto validated = [&](const std::string& tokenizer) {
    return run_with(
        {"validate", write("job.yaml",
                           "engine:\n  model: {family: GPT2, layers: 1, hidden: 16, "
                           "heads: 2, maxPositions: 16}\n"
                           "  data: {tokens: [set/train], tokenizer: " +
                               tokenizer + "}\n  batch: {globalSequences: 8}\n  steps: 5\n")});
  };
  EXPECT_EQ(validated("bytes").exit_code, 0) << validated("bytes").err;
  EXPECT_EQ(validated("/on/another/machine").exit_code, 0) << "for `trainyard sample` only";
  std::filesystem::create_directory(std::filesystem::path(folder_) / "bpe");
  write("bpe/vocab.json", testing_support::byte_vocabulary().dump());
  write("bpe/merges.txt", "#version: 0.2\n");
  const Outcome other = validated("bpe");
  EXPECT_EQ(other.exit_code, 64);
  EXPECT_THAT(other.err, HasSubstr("engine.data.tokenizer: found gpt2-bpe"));
  write("bpe/vocab.json", "{");
  EXPECT_THAT(validated("bpe").err, HasSubstr("engine.data.tokenizer: "));
  EXPECT_EQ(validated("bpe").exit_code, 64);
}

TEST_F(ValidateCommandTest, RefusesShapesThatNoRankTakesWithoutSeeingTheData) {
  const std::string file =
      write("job.yaml",
            "engine:\n  model: {family: GPT2, layers: 1, hidden: 65536, heads: 1, "
            "maxPositions: 16}\n  data: {tokens: [nowhere]}\n"
            "  batch: {globalSequences: 8}\n  steps: 5\n");
  const Outcome outcome = run_with({"validate", file});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("engine.model.heads"));
}

/// Needs only the sizes of the model, not the data.
TEST_F(ValidateCommandTest, RefusesNumericsThatDoNotFitWithoutSeeingTheData) {
  const auto errors = [&](const std::string& more) {
    const Outcome outcome = run_with({"validate", write("job.yaml", engine("5") + more)});
    EXPECT_EQ(outcome.exit_code, 64) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(errors("  numerics: {grainTokens: 100}\n"
                     "  parallelism: {context: 2}\nnumNodes: 2\n"),
              HasSubstr("engine.numerics.grainTokens: found 100, wanted a divisor of "
                        "data.sequenceLength"));
}

TEST_F(ValidateCommandTest, AnElasticJobIsValidIfASmallerSizeHasRanksForItsStages) {
  const std::string file =
      write("job.yaml",
            "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
            "  numNodes: 3\n  numProcPerNode: 1\n  elasticPolicy: {minNodes: 1}\n"
            "  engine:\n    model: {layers: 2, hidden: 16, heads: 2, vocab: 99}\n"
            "    data: {tokens: [nowhere], sequenceLength: 64}\n"
            "    batch: {globalSequences: 8}\n    steps: 1\n    parallelism: {pipeline: 2}\n"
            "  template: {spec: {containers: [{name: trainer, resources: {limits: {memory: "
            "1Gi}}}]}}\n");
  const Outcome outcome = run_with({"validate", file});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST_F(ValidateCommandTest, ADataSetFromOtherTextIsReplacedOnlyByForce) {
  const std::string text = write("text.txt", std::string(300, 'a'));
  const std::vector<std::string> prepare = {"data", "prepare", text, "--out", folder_ + "/set"};
  ASSERT_EQ(run_with(prepare).exit_code, 0);
  EXPECT_THAT(run_with(prepare).out, HasSubstr("unchanged"));
  write("text.txt", std::string(301, 'b'));
  const Outcome refused = run_with(prepare);
  EXPECT_EQ(refused.exit_code, 64);
  EXPECT_THAT(refused.err, HasSubstr("--force"));
  std::vector<std::string> forced = prepare;
  forced.emplace_back("--force");
  EXPECT_EQ(run_with(forced).exit_code, 0);
}

TEST_F(ValidateCommandTest, DataIsPrintedInOneStyleOfKeys) {
  const std::string text = write("text.txt", std::string(300, 'a'));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"data", "prepare", text, "--out", folder_ + "/set", "-o", "json"},
        {"data", "show", folder_ + "/set", "-o", "json"}}) {
    const Outcome outcome = run_with(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("\"textBytes\""));
    EXPECT_THAT(outcome.out, testing::Not(HasSubstr("text_bytes")));
  }
}

TEST_F(ValidateCommandTest, AFolderThatCannotBeMadeIsTheUsersToChange) {
  const std::string text = folder_ + "/a.txt";
  std::ofstream(text) << "words";
  std::filesystem::create_directory(folder_ + "/others");
  std::ofstream(folder_ + "/others/file") << "mine";
  for (const std::string& out : {text, text + "/below", folder_ + "/others"}) {
    for (std::vector<std::string> arguments :
         {std::vector<std::string>{"data", "prepare", text, "--out", out},
          {"data", "prepare", text, "--force", "--out", out}}) {
      const Outcome outcome = run_with(arguments);
      EXPECT_EQ(outcome.exit_code, 64) << out;
      EXPECT_THAT(outcome.err, HasSubstr(out));
    }
  }
  EXPECT_EQ(run_with({"data", "show", text + "/below"}).exit_code, 65) << "nothing is there";
}

TEST_F(ValidateCommandTest, AJobOfAnotherControllerIsNotWaitedFor) {
  const std::string file =
      write("job.yaml",
            "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
            "  managedBy: example.com/other\n"
            "  template: {spec: {containers: [{name: trainer, image: i, command: [run]}]}}\n");
  EXPECT_EQ(run_with({"validate", file}).exit_code, 0);
  const Outcome outcome = run_with({"run", file, "--run-dir", folder_ + "/run"});
  EXPECT_EQ(outcome.exit_code, 64);
  EXPECT_THAT(outcome.err,
              HasSubstr("spec.managedBy: found example.com/other, which manages this job, wanted "
                        "trainyard.dev/trainingjob-controller or no managedBy"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/run"));
}

TEST_F(ValidateCommandTest, TopEndsWhenNobodyReadsItAnyMore) {
  LiveState state;
  state.at = std::chrono::system_clock::now();
  state.pid = ::getpid();
  state.total_steps = 1'000'000;
  const Status written = write_live(folder_, state);
  ASSERT_TRUE(written) << written.error().message;
  for (const char* output : {"text", "json"}) {
    std::ostringstream out;
    std::ostringstream err;
    out.setstate(std::ios::badbit);  // as after `| head -1`
    EXPECT_EQ(run({"top", folder_, "-o", output}, out, err), 74) << "the run is not over";
  }
}

TEST(CommandLineTest, NumbersThatMeanNothingAreWrongUsage) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"sample", "x", "--temperature", "nan"},
        {"sample", "x", "--temperature", "-1"},
        {"sample", "x", "--temperature", "inf"},
        {"sample", "x", "--seed", "-1"},
        {"sample", "x", "--seed", "1.5"},
        {"sample", "x", "--seed", "18446744073709551616"},
        {"sample", "x", "--top-k", "-1"},
        {"evaluate", "x", "y", "--sequences", "-1"},
        {"run", "x", "--nodes", "-1"},
        {"run", "x", "--procs", "0"}}) {
    const Outcome outcome = run_with(arguments);
    EXPECT_EQ(outcome.exit_code, 64) << arguments.back();
    EXPECT_LT(outcome.err.size(), 150u) << "a range that can be read: " << outcome.err;
  }
  EXPECT_THAT(run_with({"run", "x", "--procs", "0"}).err, HasSubstr("1 to 1024"));
}

TEST(CommandLineTest, AnUnknownCommandIsNamedWithThoseThatThereAre) {
  const Outcome unknown = run_with({"frob"});
  EXPECT_EQ(unknown.exit_code, 64);
  EXPECT_THAT(unknown.err,
              HasSubstr("trainyard: found \"frob\", wanted a command: init, run, top, "));
  EXPECT_THAT(unknown.err, testing::Not(HasSubstr("reference"))) << "not for users";
  EXPECT_THAT(run_with({"ckpt", "frob", "x"}).err,
              HasSubstr("trainyard ckpt: found \"frob\", wanted a command: ls, show, hash, "));
  EXPECT_THAT(run_with({"data"}).err,
              HasSubstr("trainyard data: found nothing, wanted a command: prepare, show, verify"));
  EXPECT_THAT(run_with({"run"}).err, HasSubstr("MANIFEST is required"));
}

TEST(CommandLineTest, AnUnknownOptionIsBlamedAndNotTheManifest) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"plan", "--svgg", "x.svg", "job.yaml"},
                                             {"plan", "--svgg"},
                                             {"plan", "job.yaml", "--svgg"}}) {
    const Outcome outcome = run_with(words);
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_THAT(outcome.err, HasSubstr("trainyard plan: found --svgg, wanted one of its options"));
  }
}

TEST(CommandLineTest, AnEmptyWordIsWrongUsage) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run", "job.yaml", "--run-dir", ""},
        {"run", ""},
        {"run", "job.yaml", "--metrics-address", ""},
        {"run", "job.yaml", "--procs", ""},
        {"top", ""},
        {"ckpt", "ls", ""},
        {"evaluate", "x", ""},
        {"data", "prepare", "x", "--out", ""},
        {"export", "--checkpoint", "x", "--hugging-face", ""}}) {
    const Outcome outcome = run_with(arguments);
    EXPECT_EQ(outcome.exit_code, 64) << arguments[0];
    EXPECT_THAT(outcome.err, HasSubstr(": found \"\", wanted a word that is not empty"));
  }
}

TEST(CommandLineTest, HelpFitsAHundredColumns) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"run"},
                                                  {"validate"},
                                                  {"data"},
                                                  {"data", "prepare"},
                                                  {"sample"},
                                                  {"evaluate"},
                                                  {"ckpt"},
                                                  {"ckpt", "show"},
                                                  {"export"},
                                                  {"matrix"},
                                                  {"reference"}}) {
    std::vector<std::string> arguments = command;
    arguments.emplace_back("--help");
    std::istringstream help(run_with(arguments).out);
    for (std::string line; std::getline(help, line);)
      EXPECT_LE(line.size(), 100u) << command.back() << ": " << line;
  }
}

TEST(CommandLineTest, WrongUsageExits64) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"validate"}, {"fly"}, {"validate", "-o", "xml", "f"}}) {
    const Outcome outcome = run_with(arguments);
    EXPECT_EQ(outcome.exit_code, 64);
    EXPECT_NE(outcome.err, "");
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(CommandLineTest, HelpAndVersionExitZero) {
  const Outcome help = run_with({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("validate"));
  EXPECT_EQ(run_with({"--version"}).out.substr(0, 10), "trainyard ");
  const Outcome validate_help = run_with({"validate", "--help"});
  EXPECT_EQ(validate_help.exit_code, 0);
  EXPECT_THAT(validate_help.out, HasSubstr("Examples:"));
  EXPECT_THAT(validate_help.out, HasSubstr("Exit codes:"));
}

}  // namespace
}  // namespace trainyard::cli
