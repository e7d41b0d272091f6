#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "common/api/decode.h"
#include "common/io/file.h"
#include "tests/support/byte_vocabulary.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::HasSubstr;

class InitCommandTest : public testing::Test {
 protected:
  /// A machine that trains 3 M parameters at 10,000 tokens per second.
  InitCommandTest() { ::setenv("TRAINYARD_INIT_SPEED", "3e10", 1); }
  ~InitCommandTest() override { ::unsetenv("TRAINYARD_INIT_SPEED"); }

  int init(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"init", "--out", out().string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream printed;
    std::ostringstream complaints;
    const int code = run(arguments, printed, complaints);
    printed_ = printed.str();
    complaints_ = complaints.str();
    return code;
  }

  /// Makes files of about so many bytes; the folder.
  std::string texts(int files, int bytes) const {
    fs::create_directories(folder() / "My Texts.2");
    for (int i = 0; i < files; ++i) {
      std::ofstream file(folder() / "My Texts.2" / ("part " + std::to_string(i) + "(a).txt"));
      for (int written = 0, line = 0; written < bytes; written += 30, ++line)
        file << "line " << 1000 + line << " of part " << 100 + i << " waits.\n";
    }
    return (folder() / "My Texts.2").string();
  }

  api::TrainingJob job() const {
    const auto text = read_file(out() / "job.yaml", 1 << 16);
    EXPECT_TRUE(text);
    const api::CheckedJob checked = api::check_training_job(*text, {.file = "job.yaml"});
    EXPECT_EQ(api::error_of(checked.faults).message, "");
    return checked.job;
  }

  const fs::path& folder() const { return folder_.path(); }
  fs::path out() const { return folder() / "job"; }

  std::string printed_;
  std::string complaints_;

 private:
  const testing_support::TemporaryDirectory folder_;
};

TEST_F(InitCommandTest, MakesAJobThatEveryCommandTakes) {
  ASSERT_EQ(init({"--data", texts(30, 3000)}), 0) << complaints_;
  const api::TrainingJob made = job();
  EXPECT_EQ(made.metadata.name, "my-texts");
  EXPECT_EQ(made.spec.engine->model.vocab, 256);
  EXPECT_EQ(made.spec.engine->data.validation.size(), 1U);
  const std::string file = (out() / "job.yaml").string();
  EXPECT_THAT(printed_,
              HasSubstr("next:\n  trainyard run " + file +
                        "\n  trainyard top runs/my-texts     # in a second terminal\n"
                        "  trainyard sample runs/my-texts\n  trainyard evaluate runs/my-texts\n"
                        "  trainyard export runs/my-texts my-texts-hf\n  trainyard run " +
                        file + " --steps "));
  std::ostringstream plan;
  std::ostringstream complaints;
  EXPECT_EQ(run({"validate", (out() / "job.yaml").string()}, plan, complaints), 0);
  EXPECT_THAT(plan.str(), testing::Not(HasSubstr("was not checked"))) << "its data is there";
  EXPECT_EQ(run({"plan", (out() / "job.yaml").string()}, plan, complaints), 0) << complaints.str();
  const auto held_out = fs::path(out() / "data/heldout");
  EXPECT_TRUE(fs::exists(held_out));
}

TEST_F(InitCommandTest, HoldsOutBytesAndNotFilesOfOneNameOrMostOfTheText) {
  const auto write = [&](const std::string& name, size_t bytes) {
    fs::create_directories((folder() / "all" / name).parent_path());
    std::string text;
    for (int line = 0; text.size() < bytes; ++line)
      text += name + std::to_string(line) + " waits.\n";
    std::ofstream(folder() / "all" / name) << text;
  };
  const std::string all = (folder() / "all").string();
  write("a/text.txt", 5000);
  write("b/text.txt", 5000);
  ASSERT_EQ(init({"--data", all}), 0) << complaints_;
  EXPECT_TRUE(job().spec.engine->data.validation.empty());
  write("readme.txt", 3000);
  std::ofstream(folder() / "all/empty.txt") << "";
  ASSERT_EQ(init({"--data", all, "--force", "-o", "json"}), 0) << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  EXPECT_GT(told.at("heldOutTokens").get<int>(), 2000);
  EXPECT_GT(told.at("tokens").get<int>(), 9000);
  write("tiny.txt", 9);
  fs::remove(folder() / "all/readme.txt");
  ASSERT_EQ(init({"--data", all, "--force", "-o", "json"}), 0) << complaints_;
  EXPECT_EQ(nlohmann::json::parse(printed_).at("heldOutTokens"), 0);
  EXPECT_FALSE(fs::exists(out() / "data/heldout")) << "it is trained on";
}

TEST_F(InitCommandTest, LittleTextGetsALittleModel) {
  ASSERT_EQ(init({"--data", texts(1, 900), "--steps", "7", "-o", "json"}), 0) << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  EXPECT_EQ(told.at("preset"), "gpt2-100k");
  EXPECT_EQ(told.at("heldOutTokens"), 0);
  const api::TrainingJob made = job();
  EXPECT_EQ(made.spec.engine->steps, 7);
  EXPECT_TRUE(made.spec.engine->data.validation.empty());
  EXPECT_LE(made.spec.engine->data.sequence_length, 64);
}

TEST_F(InitCommandTest, NamesTheTokenizerWhereSampleFindsIt) {
  std::ifstream in(testing_support::source_path("tests/fixtures/tokenizer/added_tokens.json"));
  const fs::path tokenizer = folder() / "a: tokenizer.json";
  std::ofstream(tokenizer) << nlohmann::json::parse(in).at("tokenizer");
  ASSERT_EQ(init({"--data", texts(1, 2000), "--tokenizer", tokenizer}), 0) << complaints_;
  EXPECT_EQ(job().spec.engine->data.tokenizer, tokenizer);
  // A pod has no such path: the commands on what it has trained name it.
  ASSERT_EQ(init({"--data", texts(1, 2000), "--tokenizer", tokenizer, "--force", "--cluster"}), 0)
      << complaints_;
  EXPECT_EQ(job().spec.engine->data.tokenizer, "");
  const std::string named = " --tokenizer '" + tokenizer.string() + "'\n";
  EXPECT_THAT(printed_, HasSubstr("  trainyard sample runs/cluster/my-texts" + named));
  EXPECT_THAT(printed_, HasSubstr("  trainyard export runs/cluster/my-texts my-texts-hf" + named));
}

TEST_F(InitCommandTest, ProposesWhatThisMachineTrainsInTheTimeThereIs) {
  const std::string data = texts(30, 60000);  // 1.7 MB
  const auto proposed = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--data", data, "--force", "-o", "json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(init(arguments), 0) << complaints_;
    return nlohmann::json::parse(printed_);
  };
  auto told = proposed({});
  EXPECT_EQ(told.at("preset"), "gpt2-3m");
  const double rate = 3e10 / told.at("parameters").get<double>();
  EXPECT_NEAR(told.at("tokensPerSecond").get<double>(), rate, 1e-6);
  const auto seconds_of = [&](const nlohmann::json& of) { return of.at("seconds").get<double>(); };
  EXPECT_LE(seconds_of(told), 600);
  EXPECT_GT(seconds_of(told), 590) << "with ten evaluations of 64 sequences";
  EXPECT_EQ(told.at("steps").get<int>() % 10, 0);
  EXPECT_EQ(job().spec.engine->steps, told.at("steps"));
  EXPECT_LE(seconds_of(proposed({"--minutes", "2"})), 120);
  // Ten epochs are enough.
  told = proposed({"--minutes", "1000"});
  EXPECT_NEAR(told.at("steps").get<double>(),
              10 * told.at("tokens").get<double>() / told.at("stepTokens").get<double>(), 10);

  ::setenv("TRAINYARD_INIT_SPEED", "3e8", 1);  // 100 tokens per second
  told = proposed({});
  EXPECT_EQ(told.at("preset"), "gpt2-100k") << "14 steps of the larger are none";
  EXPECT_GE(told.at("steps"), 100);
  told = proposed({"--preset", "gpt2-3m"});
  EXPECT_EQ(told.at("preset"), "gpt2-3m");
  EXPECT_EQ(told.at("steps"), 10);
  ASSERT_EQ(init({"--data", data, "--force", "--preset", "gpt2-3m"}), 0);
  EXPECT_THAT(printed_, HasSubstr("warning: this takes longer than --minutes (10)"));
  EXPECT_EQ(proposed({"--steps", "7"}).at("steps"), 7);
  EXPECT_TRUE(proposed({"--steps", "7"}).at("seconds").is_null());
  told = proposed({"--cluster"});
  EXPECT_EQ(told.at("steps"), 2000);
  EXPECT_TRUE(told.at("tokensPerSecond").is_null());
  EXPECT_EQ(init({"--data", data, "--steps", "7", "--minutes", "3"}), 64);
  EXPECT_THAT(complaints_, HasSubstr("--minutes: found 3 with --steps"));
  EXPECT_EQ(init({"--data", data, "--cluster", "--minutes", "3"}), 64);
  EXPECT_THAT(complaints_, HasSubstr("--minutes: found 3 with --cluster"));
}

TEST_F(InitCommandTest, MeasuresThisMachine) {
  ::unsetenv("TRAINYARD_INIT_SPEED");
  ASSERT_EQ(init({"--data", texts(30, 3000), "-o", "json"}), 0) << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  EXPECT_GT(told.at("tokensPerSecond").get<double>(), 0);
  EXPECT_LE(told.at("seconds").get<double>(), 600);
}

TEST_F(InitCommandTest, ReadsMarkdownToo) {
  const fs::path data = texts(2, 3000);
  std::ofstream(data / "notes.md") << "# A title\n\nand some words\n";
  ASSERT_EQ(init({"--data", data, "-o", "json"}), 0) << complaints_;
  EXPECT_EQ(nlohmann::json::parse(printed_).at("files"), 3);
}

TEST_F(InitCommandTest, SaysWhatPrepareSaysOfTexts) {
  const fs::path data = texts(12, 3000);
  std::ofstream(data / "notes.rst") << "not read";
  fs::create_symlink("missing", data / "gone.txt");
  std::ofstream(data / "lines.txt") << "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  fs::copy_file(data / "part 4(a).txt", data / "zz copy.txt");  // the one that init holds out
  ASSERT_EQ(init({"--data", data}), 0) << complaints_;
  EXPECT_THAT(printed_, HasSubstr("warning: JSON lines are read as one document"));
  EXPECT_THAT(printed_, HasSubstr("(1): notes.rst\n"));
  EXPECT_THAT(printed_, HasSubstr("skipped: a link to a missing file (1): gone.txt -> missing\n"));
  EXPECT_THAT(printed_, HasSubstr("which keeps the text (1): zz copy.txt = part 4(a).txt\n"));
  ASSERT_EQ(init({"--data", data, "--force", "-o", "json"}), 0) << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  EXPECT_EQ(told.at("warnings").size(), 1);
  EXPECT_EQ(told.at("skipped").size(), 3);
}

TEST_F(InitCommandTest, SaysAllThatPrepareSaysOfAnUntidyFolder) {
  const fs::path data = texts(12, 3000);
  const std::string lossy = "na\xC3\xAFve text of no great size\n";
  fs::create_directories(folder() / "elsewhere");
  fs::create_directories(data / ".hidden");
  std::ofstream(folder() / "elsewhere/extra.txt") << lossy;
  std::ofstream(data / ".hidden/kept.txt") << "not read";
  fs::create_directory_symlink(folder() / "elsewhere", data / "again");
  fs::create_directory_symlink(folder() / "elsewhere", data / "more");
  fs::create_symlink("missing", data / "gone.txt");
  ASSERT_EQ(::mkfifo((data / "pipe.txt").c_str(), 0600), 0);
  std::ofstream(data / "notes.rst") << "not read";
  std::ofstream(data / "lines.txt") << "{\"text\": \"one\"}\r\n{\"text\": \"two\"}\r\n";
  fs::copy_file(data / "part 3(a).txt", data / "zz copy.txt");  // the one that init holds out
  const fs::path tokenizer = folder() / "tokenizer";
  fs::create_directories(tokenizer);
  std::ofstream(tokenizer / "tokenizer.json") << testing_support::small_tokenizer_json(128);
  std::ofstream(tokenizer / "vocab.json") << "{}";
  std::ofstream(tokenizer / "special_tokens_map.json") << R"({"eos_token": "</s>"})";
  const std::string lost = "again/extra.txt: 2 of " + std::to_string(lossy.size()) + " bytes";
  const std::vector<std::string> warnings = {"special_tokens_map.json: eos_token names \"</s>\"",
                                             "vocab.json next to it is not read",
                                             "JSON lines are read as one document", "(1): " + lost};
  const std::vector<std::string> skipped = {"(1): notes.rst",
                                            "a pipe (1): pipe.txt",
                                            "a hidden folder (1): .hidden",
                                            "a link to a missing file (1): gone.txt -> missing",
                                            "a folder that is read already (1): more -> ",
                                            "(1): zz copy.txt = part 3(a).txt"};
  const std::vector<std::string> call = {"--data", data, "--tokenizer", tokenizer};
  ASSERT_EQ(init(call), 0) << complaints_;
  for (const std::string& line : warnings)
    EXPECT_THAT(printed_, HasSubstr(line));
  for (const std::string& line : skipped)
    EXPECT_THAT(printed_, HasSubstr(line));
  EXPECT_THAT(printed_, HasSubstr("tokenizer: "));
  ASSERT_EQ(init({"--data", data, "--tokenizer", tokenizer, "--force", "-o", "json"}), 0)
      << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  const auto expect_all = [&](const char* member, const std::vector<std::string>& wanted) {
    const auto found = told.at(member).get<std::vector<std::string>>();
    EXPECT_EQ(found.size(), wanted.size()) << told.at(member);
    for (const std::string& line : wanted)
      EXPECT_THAT(found, testing::Contains(HasSubstr(line)));
  };
  expect_all("warnings", warnings);
  expect_all("skipped", skipped);
  EXPECT_EQ(told.at("files"), 14);
  EXPECT_EQ(told.at("heldOutTokens"), 2901);
}

TEST_F(InitCommandTest, AHeldOutTextThatLosesEverythingIsTrainedOn) {
  const fs::path data = texts(2, 3000);  // 2,900 bytes each: too large a part to hold out
  std::ofstream odd(data / "odd.txt");
  for (int i = 0; i < 500; ++i)
    odd << "\xC3\xA9";
  odd.close();
  const fs::path tokenizer = folder() / "tokenizer.json";
  std::ofstream(tokenizer) << testing_support::small_tokenizer_json(128);
  ASSERT_EQ(init({"--data", data, "--tokenizer", tokenizer, "-o", "json"}), 0) << complaints_;
  const auto told = nlohmann::json::parse(printed_);
  EXPECT_EQ(told.at("heldOutTokens"), 0);
  EXPECT_EQ(told.at("tokens"), 2 * 2901 + 1);
  ASSERT_EQ(told.at("warnings").size(), 1);
  EXPECT_THAT(told.at("warnings")[0].get<std::string>(),
              HasSubstr("(1): odd.txt: 1000 of 1000 bytes"));
}

TEST_F(InitCommandTest, NamesTheFileWhoseEndOfTextTextsHave) {
  std::ofstream(folder() / "tokenizer.json") << testing_support::small_tokenizer_json();
  std::ofstream(folder() / "config.json") << R"({"eos_token_id": [257, 258]})";
  EXPECT_EQ(init({"--data", texts(3, 3000), "--tokenizer", folder()}), 65);
  EXPECT_THAT(complaints_, HasSubstr("/config.json: eos_token_id: found token 257 'abc'"));
  EXPECT_FALSE(fs::exists(out() / "job.yaml"));
}

TEST_F(InitCommandTest, OfAClusterThePathsAreThoseInPods) {
  ASSERT_EQ(init({"--data", texts(12, 3000), "--cluster", "--preset", "gpt2-11m"}), 0)
      << complaints_;
  const api::TrainingJob made = job();
  EXPECT_EQ(made.spec.engine->model.preset, "gpt2-11m");
  EXPECT_EQ(made.spec.engine->data.tokens, std::vector<std::string>{"/data/train"});
  ASSERT_TRUE(made.spec.pod_template);
  const std::string to = out().string();
  EXPECT_THAT(printed_, HasSubstr("next:\n  kubectl apply -f " + to +
                                  "/claim.yaml     # may complain of the size of a claim that "
                                  "exists\n  kubectl wait --for=condition=Ready pod/filler "
                                  "--timeout=5m\n  kubectl exec filler -- sh -c 'rm -rf "
                                  "/claim/init.data/my-texts && mkdir -p /claim/init.data'\n"
                                  "  kubectl cp " +
                                  to +
                                  "/data filler:/claim/init.data/my-texts\n"
                                  "  kubectl delete pod filler "));
  EXPECT_THAT(made.spec.pod_template->json, HasSubstr(R"("subPath":"init.data/my-texts")"));
  EXPECT_THAT(made.spec.pod_template->json, HasSubstr(R"("memory":"1Gi")"));
  EXPECT_THAT(printed_, HasSubstr("\n  kubectl apply -f " + to +
                                  "/job.yaml\n  kubectl get tj my-texts -w\n"));
  EXPECT_THAT(
      printed_,
      HasSubstr("-- tar -C /claim -cf - my-texts | tar -C runs/cluster -xf -\n"
                "  kubectl delete pod filler --grace-period=1\n"
                "  trainyard sample runs/cluster/my-texts\n"
                "  trainyard evaluate runs/cluster/my-texts " +
                to +
                "/data/heldout\n  trainyard export runs/cluster/my-texts my-texts-hf\nTo train"));
  // Its claim is that of the example, for one node.
  const auto lines_of = [](const fs::path& file) {
    std::ifstream in(file);
    std::string lines;
    for (std::string line; std::getline(in, line);) {
      if (line.find("accessModes") != std::string::npos) continue;
      line = line.substr(0, line.find('#'));
      line.erase(line.find_last_not_of(' ') + 1);
      if (!line.empty()) lines += line + "\n";
    }
    return lines;
  };
  EXPECT_EQ(lines_of(out() / "claim.yaml"),
            lines_of(testing_support::source_path("manifests/examples/claim-and-filler.yaml")));
  EXPECT_THAT(lines_of(out() / "claim.yaml"), HasSubstr("claimName: training"));
}

TEST_F(InitCommandTest, OfAClusterAModelHasTheMemoryAndTheVolumeThatItNeeds) {
  ASSERT_EQ(init({"--data", texts(12, 3000), "--cluster", "--preset", "gpt2-355m"}), 0)
      << complaints_;
  // 32 bytes of each of 355 million parameters, 4 checkpoints of 12 bytes; and a quarter more.
  EXPECT_THAT(job().spec.pod_template->json, ContainsRegex(R"("memory":"1[3-6]Gi")"));
  EXPECT_THAT(*read_file(out() / "claim.yaml", 1 << 16), ContainsRegex("storage: 20Gi"));
  std::filesystem::remove(out() / "job.yaml");
  EXPECT_EQ(init({"--data", texts(12, 3000), "--cluster"}), 64) << "claim.yaml is in the way";
  EXPECT_THAT(complaints_, HasSubstr("/claim.yaml: exists already"));
}

TEST_F(InitCommandTest, WhatIsNotMeasuredTakesNoDaysEither) {
  const std::string data = texts(30, 60000);
  ASSERT_EQ(init({"--data", data, "--steps", "100000000"}), 0) << complaints_;
  EXPECT_EQ(job().spec.engine->model.preset, "gpt2-100k") << "of 1.7 MB else gpt2-3m";
  ASSERT_EQ(init({"--data", data, "--steps", "1000000", "--preset", "gpt2-124m", "--force", "-o",
                  "json"}),
            0)
      << complaints_;
  EXPECT_EQ(job().spec.engine->model.preset, "gpt2-124m");
  const auto warnings = nlohmann::json::parse(printed_).at("warnings");
  ASSERT_EQ(warnings.size(), 1);
  EXPECT_THAT(warnings[0].get<std::string>(),
              HasSubstr("this may take days on the processors of this machine; use fewer --steps"));
}

TEST_F(InitCommandTest, WhatCannotBeIsNamedAndNothingIsReplaced) {
  const std::string data = texts(2, 3000);
  EXPECT_EQ(init({"--data", data, "--preset", "gpt2-3"}), 64);
  EXPECT_THAT(complaints_, HasSubstr("found 'gpt2-3', wanted one of gpt2-100k, gpt2-3m"));
  EXPECT_EQ(init({"--data", (folder() / "none").string()}), 65);
  EXPECT_THAT(complaints_, HasSubstr("none"));
  std::ofstream(folder() / "short.txt") << "a few words";
  EXPECT_EQ(init({"--data", (folder() / "short.txt").string()}), 65);
  EXPECT_THAT(complaints_, HasSubstr("tokens to train on, wanted more than"));
  ASSERT_EQ(init({"--data", texts(2, 3000), "--force"}), 0) << complaints_;
  EXPECT_EQ(init({"--data", data}), 64);
  EXPECT_THAT(complaints_, HasSubstr("replace it with --force"));
  EXPECT_EQ(init({"--data", texts(3, 4000), "--force"}), 0) << complaints_;
}

}  // namespace
}  // namespace trainyard::cli
