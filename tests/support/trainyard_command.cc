#include "tests/support/trainyard_command.h"

#include <atomic>
#include <chrono>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::minutes kTraining{3};

}  // namespace

TrainyardCommand::TrainyardCommand(std::filesystem::path folder, std::filesystem::path program)
    : folder_(std::move(folder)),
      program_(program.empty() ? std::filesystem::path(program_path("trainyard"))
                               : std::move(program)) {}

int TrainyardCommand::run(const std::vector<std::string>& arguments,
                          const std::string& output) const {
  ChildProcess::Spec spec;
  spec.argv = {program_};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.output = folder_ / output;
  spec.errors = folder_ / (output + "-errors");
  const auto end = ChildProcess(spec).wait(kTraining);
  return end && end->signal == 0 ? end->exit_code : -1;
}

void TrainyardCommand::prepare_data(const std::filesystem::path& into) const {
  std::ofstream text(folder_ / "text.txt");
  for (int i = 0; i < 400; ++i)
    text << "the quick brown fox jumps over " << i << " lazy dogs\n";
  text.close();
  ASSERT_EQ(run({"data", "prepare", folder_ / "text.txt", "--out", into}, "data-out"), 0);
}

std::string TrainyardCommand::state_hash(const std::filesystem::path& checkpoints) const {
  EXPECT_EQ(run({"ckpt", "show", "--hash", "-o", "json", checkpoints / "latest"}, "show"), 0);
  std::ifstream file(folder_ / "show");
  return Json::parse(file, nullptr, false).value("stateHash", "");
}

std::string TrainyardCommand::state_hash_of_run(Json job) const {
  static std::atomic<int> runs{0};
  const std::string name = "run-" + std::to_string(++runs);
  const Json& storage = job["spec"]["checkpointPolicy"]["storage"];
  const std::string claim = storage["persistentVolumeClaim"]["claimName"];
  job["spec"].erase("template");
  std::ofstream(folder_ / (name + ".json")) << job.dump();
  EXPECT_EQ(run({"run", folder_ / (name + ".json"), "--run-dir", folder_ / name, "-o", "json"},
                name + "-out"),
            0);
  return state_hash(folder_ / name / "pvc" / claim / std::string(job["metadata"]["name"]));
}

}  // namespace trainyard::testing_support
