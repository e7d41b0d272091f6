#include "tests/support/run_fixture.h"

#include <fstream>
#include <iterator>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "tests/support/ledger_check.h"
#include "tests/support/paths.h"

namespace trainyard::testing_support {

const char RunFixture::kManifest[] = R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: tiny}
spec:
  numNodes: 1
  numProcPerNode: 2
  engine:
    model: {family: GPT2, layers: 1, hidden: 16, heads: 2, vocab: 257, maxPositions: 16}
    data: {tokens: [data/train], sequenceLength: 16}
    batch: {globalSequences: 12, microSequences: 2}
    steps: 50
  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: ckpt}}, everySteps: 10}
  failurePolicy: {backoff: {initialSeconds: 1, maxSeconds: 2}}
)";

const char RunFixture::kMayStandStill[] = "  progressPolicy: {minStallSeconds: 600}\n";

std::string varied_text(size_t bytes) {
  std::string text;
  for (uint32_t state = 1; text.size() < bytes; state = state * 1664525 + 1013904223)
    text += static_cast<char>('a' + (state >> 24) % 26);
  return text;
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

RunFixture::RunFixture() : mark_("FAKE_RANK_MARK=" + folder().filename().string()) {
  std::filesystem::create_directory(temporary());
  write("job.yaml", kManifest);
  write("text.txt", varied_text(4000));
  const ChildEnd end = trainyard(
      {"data", "prepare", (folder() / "text.txt").string(), "--out", (folder() / "data").string()});
  EXPECT_EQ(end.exit_code, 0) << errors();
}

RunFixture::~RunFixture() {
  // A failed test must not leave processes to the next one.
  for (const pid_t pid : running())
    ::kill(pid, SIGKILL);
}

void RunFixture::write(const std::string& name, const std::string& text) const {
  std::ofstream(folder() / name) << text;
}

std::vector<std::string> RunFixture::arguments(const std::string& manifest) const {
  return {program_path("trainyard"),
          "run",
          (folder() / manifest).string(),
          "--run-dir",
          run_dir().string(),
          "-o",
          "json"};
}

RunFixture::Environment RunFixture::environment(Environment more) const {
  more.try_emplace("TRAINYARD_WORKER", program_path("trainyard-fake-rank"));
  more.try_emplace("TMPDIR", temporary());
  more[mark_.substr(0, mark_.find('='))] = mark_.substr(mark_.find('=') + 1);
  return more;
}

std::unique_ptr<ChildProcess> RunFixture::start(Environment more, std::vector<std::string> options,
                                                const std::string& manifest) {
  ChildProcess::Spec spec;
  spec.argv = arguments(manifest);
  spec.argv.insert(spec.argv.end(), options.begin(), options.end());
  spec.environment = environment(std::move(more));
  spec.output = folder() / "out";
  spec.errors = folder() / "err";
  return std::make_unique<ChildProcess>(spec);
}

ChildEnd RunFixture::trainyard(const std::vector<std::string>& arguments,
                               const std::string& prefix) const {
  ChildProcess::Spec spec;
  spec.argv = {program_path("trainyard")};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  spec.environment = environment();
  spec.output = folder() / (prefix + "out");
  spec.errors = folder() / (prefix + "err");
  return ChildProcess(spec).wait(kDeadline).value_or(ChildEnd{});
}

std::vector<RunFixture::Json> RunFixture::printed(const std::string& type) const {
  std::vector<Json> found;
  std::ifstream file(folder() / "out");
  for (std::string line; std::getline(file, line);) {
    Json object = Json::parse(line, nullptr, false);
    if (object.is_object() && object.value("type", "") == type) found.push_back(object);
  }
  return found;
}

RunFixture::Json RunFixture::summary() const {
  const std::vector<Json> found = printed("summary");
  EXPECT_EQ(found.size(), 1u) << output() << errors();
  return found.empty() ? Json::object() : found.front();
}

std::string RunFixture::output() const { return content_of(folder() / "out"); }
std::string RunFixture::errors() const { return content_of(folder() / "err"); }

RunFixture::Json RunFixture::status() const {
  const Json object = Json::parse(content_of(run_dir() / "status.json"), nullptr, false);
  return object.is_object() ? object.value("status", Json::object()) : Json::object();
}

int64_t RunFixture::step_printed() const {
  const std::vector<Json> all = printed("progress");
  return all.empty() ? -1 : all.back().value("step", int64_t{0});
}

int64_t RunFixture::step_shown() const {
  const Json live = Json::parse(content_of(run_dir() / "live.json"), nullptr, false);
  return live.is_object() ? live.value("step", int64_t{-1}) : -1;
}

bool RunFixture::wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return false;
}

bool RunFixture::checkpointed(int64_t step) const {
  const std::string text = content_of(checkpoints() / "fake.json");
  return !text.empty() && std::stoll(text) >= step;
}

std::vector<pid_t> RunFixture::running(const std::string& name) const {
  std::vector<pid_t> found;
  for (const pid_t pid : running()) {
    std::error_code error;
    const auto path = std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error);
    if (!error && path.filename() == name) found.push_back(pid);
  }
  return found;
}

void RunFixture::expect_end(ChildProcess& child, int exit_code) {
  const std::optional<ChildEnd> end = child.wait(kDeadline);
  ASSERT_TRUE(end) << "still running: " << output();
  EXPECT_EQ(end->signal, 0);
  EXPECT_EQ(end->exit_code, exit_code) << output() << errors();
  if (exit_code == 0) {
    EXPECT_TRUE(status().contains("goodput")) << "no ledger to look at";
  }
  expect_ledger_conserves();
}

void RunFixture::expect_ledger_conserves() const {
  const Json now = status();
  EXPECT_THAT(faults_of_ledger(now), ::testing::IsEmpty()) << now.dump(1);
}

void RunFixture::expect_nothing_left() {
  EXPECT_THAT(running(), ::testing::IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(temporary())) << "something was left in TMPDIR";
  EXPECT_FALSE(std::filesystem::exists(run_dir() / "control")) << "the control socket's folder";
}

}  // namespace trainyard::testing_support
