#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace trainyard::checkpoint::testing {

/// A checkpoint_probe beside the test and what it has said.
class ProbeRun {
 public:
  static constexpr std::chrono::seconds kDeadline{60};

  /// Output goes to `log` and `log`.err.
  ProbeRun(const std::filesystem::path& root, std::vector<std::string> arguments,
           std::filesystem::path log)
      : log_(std::move(log)) {
    testing_support::ChildProcess::Spec spec;
    spec.argv = {testing_support::test_program_path("checkpoint_probe"), root.string()};
    spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
    spec.output = log_;
    spec.errors = log_.string() + ".err";
    child_ = std::make_unique<testing_support::ChildProcess>(spec);
  }

  pid_t pid() const { return child_->pid(); }
  void signal(int number) const { child_->signal(number); }
  std::optional<testing_support::ChildEnd> wait() { return child_->wait(kDeadline); }

  /// Waits until the process has stopped itself. False when it has ended instead, or never stops.
  bool stopped() {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      if (state() == 'T') return true;
      if (child_->wait(std::chrono::milliseconds(1))) return false;
    }
    return false;
  }

  /// Steps of lines "WORD STEP ...".
  std::vector<int64_t> steps(const std::string& word) const {
    std::vector<int64_t> found;
    std::ifstream file(log_);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(word + " ", 0) == 0) found.push_back(std::stoll(line.substr(word.size() + 1)));
    }
    return found;
  }
  /// Everything it said, for messages.
  std::string said() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  /// Of a thread by its name; nullopt when there is none.
  std::optional<pid_t> thread_named(const std::string& name) const {
    const std::filesystem::path tasks = "/proc/" + std::to_string(pid()) + "/task";
    for (const auto& task : std::filesystem::directory_iterator(tasks)) {
      std::ifstream file(task.path() / "comm");
      std::string found;
      std::getline(file, found);
      if (found == name) return std::stoi(task.path().filename());
    }
    return std::nullopt;
  }

 private:
  char state() const {
    std::ifstream file("/proc/" + std::to_string(pid()) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t end = text.rfind(')');
    return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
  }

  std::filesystem::path log_;
  std::unique_ptr<testing_support::ChildProcess> child_;
};

}  // namespace trainyard::checkpoint::testing
