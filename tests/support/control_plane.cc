#include "tests/support/control_plane.h"

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"

namespace trainyard::testing_support {
namespace {

constexpr std::chrono::minutes kStartTimeout{4};
constexpr std::chrono::minutes kCommandTimeout{2};

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The script that starts and ends planes.
CommandResult plane_script(const std::string& action, const std::filesystem::path& folder) {
  const TemporaryDirectory scratch;
  return run_command(
      {.argv = {source_path("tests/apiserver/plane"), action, folder, std::to_string(::getpid())},
       .output = scratch.path() / "out",
       .errors = scratch.path() / "err"},
      kStartTimeout);
}

}  // namespace

CommandResult run_command(const ChildProcess::Spec& spec, std::chrono::milliseconds timeout) {
  CommandResult result;
  ChildProcess child(spec);
  if (const auto end = child.wait(timeout)) {
    result.exit_code = end->signal == 0 ? end->exit_code : 128 + end->signal;
  }
  result.output = content(spec.output);
  result.errors = content(spec.errors);
  return result;
}

ControlPlane::ControlPlane() {
  if (const char* shared = std::getenv("TRAINYARD_TEST_PLANE");
      shared != nullptr && *shared != '\0') {
    folder_ = shared;
    EXPECT_TRUE(std::filesystem::exists(kubeconfig()))
        << "TRAINYARD_TEST_PLANE names " << folder_ << ", where no control plane is";
    return;
  }
  own_ = true;
  folder_ =
      std::filesystem::temp_directory_path() / ("trainyard-plane-" + std::to_string(::getpid()));
  const CommandResult started = plane_script("up", folder_);
  EXPECT_EQ(started.exit_code, 0) << started.output << started.errors;
}

ControlPlane::~ControlPlane() {
  if (!own_) return;
  const CommandResult ended = plane_script("down", folder_);
  EXPECT_EQ(ended.exit_code, 0) << ended.output << ended.errors;
}

std::unique_ptr<ControlPlane> ApiServerTest::plane_;
std::unique_ptr<ApiReader> ApiServerTest::reader_;

void ApiServerTest::SetUpTestSuite() {
  if (!plane_) plane_ = std::make_unique<ControlPlane>();
  reader_ = std::make_unique<ApiReader>(plane_->kubeconfig());
  std::filesystem::create_directories(plane_->folder() / "suites");
  std::ofstream(plane_->folder() / "suites" /
                ::testing::UnitTest::GetInstance()->current_test_suite()->name());
}

/// The HTTP library's threads end before static objects do, and the reader needs them to end.
void ApiServerTest::TearDownTestSuite() { reader_.reset(); }

void ApiServerTest::SetUp() {
  static std::atomic<int> tests{0};
  namespace_ = "test-" + std::to_string(::getpid()) + "-" + std::to_string(++tests);
  const nlohmann::json named = {{"metadata", {{"name", namespace_}}}};
  ASSERT_TRUE(comes_to_be([&] {
    const auto made = api().create(kube::kNamespaces, "", named);
    return made ? std::nullopt : std::optional(made.error());
  }));
  // Pods can be made once the namespace has its service account.
  ASSERT_TRUE(wait_until([&] { return get({"serviceaccount", "default"}).is_object(); }));
}

void ApiServerTest::TearDown() {
  EXPECT_TRUE(comes_to_be([&] {
    const auto gone = api().remove(kube::kNamespaces, {"", namespace_}, {});
    return gone ? std::nullopt : std::optional(gone.error());
  }));
}

::testing::AssertionResult ApiServerTest::comes_to_be(
    const std::function<std::optional<kube::ApiError>()>& write) {
  std::optional<kube::ApiError> error;
  // It is so, or on its way.
  const auto is_done = [&] {
    error = write();
    return !error || error->reason == kube::Reason::kAlreadyExists ||
           error->reason == kube::Reason::kNotFound || error->reason == kube::Reason::kConflict;
  };
  if (wait_until(is_done)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << error->message;
}

CommandResult ApiServerTest::kubectl(const std::vector<std::string>& arguments) const {
  const std::filesystem::path& home = plane_->folder();
  // The cache of what the server offers must not outlive the server: ports are used again.
  ChildProcess::Spec spec{.argv = {home / "kubectl", "--kubeconfig", plane_->kubeconfig(),
                                   "--cache-dir", home / "kubectl-cache", "--namespace",
                                   namespace_}};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  static std::atomic<int> calls{0};
  const std::string call = std::to_string(++calls);
  spec.output = folder() / ("out-" + call);
  spec.errors = folder() / ("err-" + call);
  return run_command(spec, kCommandTimeout);
}

CommandResult ApiServerTest::kubectl_with(std::vector<std::string> arguments,
                                          const std::string& text) const {
  static std::atomic<int> files{0};
  const std::filesystem::path path = folder() / ("manifest-" + std::to_string(++files) + ".yaml");
  std::ofstream(path) << text;
  arguments.insert(arguments.end(), {"-f", path});
  return kubectl(arguments);
}

std::string ApiServerTest::must(const std::vector<std::string>& arguments) const {
  CommandResult result = kubectl(arguments);
  std::string words;
  for (const std::string& argument : arguments)
    words += " " + argument;
  EXPECT_EQ(result.exit_code, 0) << "kubectl" << words << "\n" << result.output << result.errors;
  return std::move(result.output);
}

std::string ApiServerTest::must_with(const std::vector<std::string>& arguments,
                                     const std::string& text) const {
  CommandResult result = kubectl_with(arguments, text);
  EXPECT_EQ(result.exit_code, 0) << text << "\n" << result.output << result.errors;
  return std::move(result.output);
}

ApiServerTest::Json ApiServerTest::get(const std::vector<std::string>& what) const {
  if (ApiReader::knows(what)) return reader_->get(namespace_, what);
  std::vector<std::string> arguments = {"get", "-o", "json"};
  arguments.insert(arguments.end(), what.begin(), what.end());
  const CommandResult result = kubectl(arguments);
  if (result.exit_code != 0) return nullptr;
  return Json::parse(result.output, nullptr, false);
}

bool ApiServerTest::wait_until(const std::function<bool()>& condition,
                               std::chrono::seconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

}  // namespace trainyard::testing_support
