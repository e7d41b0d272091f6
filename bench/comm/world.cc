#include "bench/comm/world.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "bench/comm/gloo_peer.h"
#include "bench/comm/member.h"

namespace trainyard::bench {
namespace {

/// Importing torch takes seconds, on a loaded machine many.
constexpr std::chrono::minutes kStartPatience{3};
/// The longest case: gigabytes of slow messages, some hundred times.
constexpr std::chrono::minutes kCasePatience{10};

class ProcessWorld final : public World {
 public:
  ProcessWorld(std::string name, int answers_a_process)
      : name_(std::move(name)), answers_(answers_a_process) {}

  const std::string& name() const override { return name_; }

  Result<std::vector<Sample>> run(const Case& one) override {
    for (Process& process : processes)
      TRAINYARD_TRY(process.write_line(encode(one)));
    std::vector<Sample> samples;
    Status failed;
    for (Process& process : processes) {
      for (int i = 0; i < answers_; ++i) {
        TRAINYARD_ASSIGN(const std::string line, process.read_line(kCasePatience));
        auto sample = decode_sample(line);
        if (sample) samples.push_back(*sample);
        // All are read, so that the next case does not find this one's answers.
        if (!sample && failed) failed = sample.error().with_context(name_);
      }
    }
    TRAINYARD_TRY(std::move(failed));
    return samples;
  }

  std::vector<Process> processes;

 private:
  const std::string name_;
  const int answers_;
};

/// A folder that is gone with this.
class Scratch {
 public:
  static Result<Scratch> make() {
    std::string path = (std::filesystem::temp_directory_path() / "bench-comm-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) return io_error("make a folder in /tmp", errno);
    return Scratch(path);
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace

Result<std::unique_ptr<World>> start_world(const std::string& name, const WorldOptions& options) {
  const bool threads = name == "local";
  auto world = std::make_unique<ProcessWorld>(name, threads ? options.ranks : 1);
  MemberRole role{name, 0, options.ranks, options.ring};
  for (; role.rank < (threads ? 1 : options.ranks); ++role.rank) {
    std::vector<std::string> command = options.member_command;
    for (std::string& word : encode(role))
      command.push_back(std::move(word));
    const std::string who = threads ? "the process of world local"
                                    : "rank " + std::to_string(role.rank) + " of world " + name;
    TRAINYARD_ASSIGN(Process process, Process::start(command, who));
    world->processes.push_back(std::move(process));
  }
  if (threads) return std::unique_ptr<World>(std::move(world));
  std::string table;
  for (Process& process : world->processes) {
    TRAINYARD_ASSIGN(const std::string address, process.read_line(kStartPatience));
    if (address.starts_with("error ")) {
      return Error{ErrorCode::kInternal, process.name() + ": " + address.substr(6)};
    }
    table += address + " ";
  }
  for (Process& process : world->processes)
    TRAINYARD_TRY(process.write_line(table));
  return std::unique_ptr<World>(std::move(world));
}

Result<std::unique_ptr<World>> start_gloo(const std::string& python, int ranks) {
  TRAINYARD_ASSIGN(const Scratch scratch, Scratch::make());
  auto world = std::make_unique<ProcessWorld>("gloo", 1);
  for (int rank = 0; rank < ranks; ++rank) {
    TRAINYARD_ASSIGN(Process process,
                     Process::start({python, "-c", kGlooPeer, std::to_string(rank),
                                     std::to_string(ranks), scratch.path() + "/store"},
                                    python + " (rank " + std::to_string(rank) + " of world gloo)"));
    world->processes.push_back(std::move(process));
  }
  for (Process& process : world->processes) {
    const auto line = process.read_line(kStartPatience);
    if (line && *line == "ready") continue;
    return Error{ErrorCode::kUnavailable,
                 python + " did not start torch.distributed with gloo (its words are above): " +
                     (line ? *line : line.error().message)};
  }
  return std::unique_ptr<World>(std::move(world));
}

}  // namespace trainyard::bench
