// A rank that trains nothing: speaks common/worker_contract.h, counts steps of a few milliseconds,
// keeps its "checkpoint" (a step number) in TRAINYARD_CHECKPOINT_DIR/fake.json, and fails when and
// how FAKE_RANK_FAULT says: "RANK:STEP:KIND", KIND one of kill, hang, oom, crash (70), config (64);
// several are separated by commas, and the nth does not happen before generation n. Each happens
// once per run directory, config each time. FAKE_RANK_STEPS, FAKE_RANK_STEP_MS and FAKE_RANK_EVERY
// (steps between checkpoints) set the pace. Every process that it starts or is carries
// FAKE_RANK_MARK for tests to look for what was left behind.
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <limits>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "common/worker_contract.h"

namespace trainyard {
namespace {

namespace contract = trainyard::contract;

std::string text_of(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}
int64_t number_of(const char* name, int64_t otherwise) {
  const std::string text = text_of(name);
  return text.empty() ? otherwise : std::stoll(text);
}

struct Fault {
  int64_t rank = -1;
  int64_t step = -1;
  std::string kind;
  int64_t generation = 1;  ///< the first in which it happens
};

Fault fault_of(const std::string& text) {
  const size_t first = text.find(':');
  const size_t second = text.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return {};
  return {std::stoll(text.substr(0, first)), std::stoll(text.substr(first + 1)),
          text.substr(second + 1)};
}

std::vector<Fault> faults_of(const std::string& text) {
  std::vector<Fault> faults;
  std::istringstream list(text);
  for (std::string one; std::getline(list, one, ',');) {
    faults.push_back(fault_of(one));
    faults.back().generation = static_cast<int64_t>(faults.size());
  }
  return faults;
}

class FakeRank {
 public:
  FakeRank()
      : rank_(number_of(contract::kEnvRank, 0)),
        socket_(static_cast<int>(number_of(contract::kEnvAgentFd, -1))),
        directory_(text_of(contract::kEnvCheckpointDir)),
        faults_(faults_of(text_of("FAKE_RANK_FAULT"))) {
    void* memory = ::mmap(nullptr, contract::kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                          static_cast<int>(number_of(contract::kEnvProgressFd, -1)), 0);
    page_ = static_cast<contract::ProgressPage*>(memory);
    page_->checkpoint_step = -1;
    page_->restored_step = -1;
    figures_.validation_loss = std::numeric_limits<double>::quiet_NaN();
    store_figures();
    page_->total_steps = steps_;
    page_->counters.version = contract::kRankCountersVersion;
    page_->counters.memory_bytes[0] = 1 << 20;
    page_->magic = contract::kProgressMagic;
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &term, nullptr);
    term_ = UniqueFd(::signalfd(-1, &term, SFD_NONBLOCK | SFD_CLOEXEC));
  }

  int run() {
    note_start();
    std::printf("rank %lld starts\n", static_cast<long long>(rank_));
    std::fflush(stdout);
    set_phase(contract::Phase::kRendezvous);
    listen();
    while (!started_) {
      if (!wait(1000)) return contract::kExitTerminatedAfterCheckpoint;
    }
    restore();
    set_phase(contract::Phase::kTraining);
    while (step_ < steps_) {
      if (!wait(step_ms_)) {
        checkpoint();
        return contract::kExitTerminatedAfterCheckpoint;
      }
      ++step_;
      count_step();
      if (step_ % every_ == 0 || step_ == steps_) checkpoint();
      publish();
      if (const int code = fail_if_told(); code != 0) return code;
    }
    set_phase(contract::Phase::kDone);
    if (rank_ == 0) {
      say(contract::encode(
          contract::RunResult{"fa4e" + std::to_string(steps_), steps_, loss(), loss() + 0.25}));
    }
    return 0;
  }

 private:
  void set_phase(contract::Phase phase) { page_->phase = static_cast<uint32_t>(phase); }
  void say(const std::string& line) {
    if (::write(socket_, line.data(), line.size()) < 0) std::exit(contract::kExitRetry);
  }
  double loss() const { return 5.0 / static_cast<double>(1 + step_); }

  /// "gGENERATION rRANK" in the checkpoint directory: a rank of a generation starts once.
  void note_start() {
    const UniqueFd fd(
        ::open((directory_ / "starts").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    const std::string line =
        "g" + text_of(contract::kEnvGeneration) + " r" + std::to_string(rank_) + "\n";
    if (::write(fd.get(), line.data(), line.size()) < 0) std::exit(contract::kExitRetry);
  }

  void listen() {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener_.get(), 8);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    say(contract::encode(
        contract::Listening{"127.0.0.1:" + std::to_string(ntohs(address.sin_port))}));
  }

  /// Sleeps and obeys; false when asked to stop.
  bool wait(int64_t milliseconds) {
    pollfd fds[2] = {{socket_, POLLIN, 0}, {term_.get(), POLLIN, 0}};
    if (::poll(fds, 2, static_cast<int>(milliseconds)) <= 0) return true;
    if (fds[1].revents != 0) return false;
    char buffer[4096];
    const ssize_t count = ::read(socket_, buffer, sizeof buffer);
    if (count <= 0) std::exit(contract::kExitRetry);
    input_.append(buffer, static_cast<size_t>(count));
    for (size_t end = 0; (end = input_.find('\n')) != std::string::npos;) {
      const std::string line = input_.substr(0, end);
      input_.erase(0, end + 1);
      const auto type = contract::message_type(line);
      if (type && *type == "stop") return false;
      if (type && *type == "start") started_ = contract::decode_start(line).has_value();
    }
    return true;
  }

  void restore() {
    set_phase(contract::Phase::kRestoring);
    const auto stored = read_file(directory_ / "fake.json", 64);
    step_ = stored ? std::stoll(*stored) : 0;
    page_->step = step_;
    page_->restored_step = step_;
  }

  void checkpoint() {
    if (rank_ == 0) (void)write_file_atomic(directory_ / "fake.json", std::to_string(step_));
    page_->checkpoint_step = step_;
  }

  /// A step of which three quarters went backward; 100 tokens of it are this rank's.
  void count_step() {
    const int64_t took_ns = step_ms_ * 1'000'000;
    contract::RankCounters& counters = page_->counters;
    contract::observe(counters.step, took_ns);
    contract::observe(counters.stages[static_cast<size_t>(contract::Stage::kForward)], took_ns / 4);
    contract::observe(counters.stages[static_cast<size_t>(contract::Stage::kBackward)],
                      took_ns - took_ns / 4);
    counters.tokens_trained.fetch_add(100);
    counters.collectives[0].operations.fetch_add(1);
    counters.collectives[0].bytes_sent.fetch_add(4096);
  }

  void store_figures() {
    contract::visit_figures(
        [&](const contract::Figure& figure, double value) { page_->figure(figure.slot) = value; },
        figures_);
  }

  void publish() {
    page_->sequence.fetch_add(1);
    page_->step = step_;
    figures_.loss = loss();
    figures_.learning_rate = 1e-3;
    figures_.step_seconds = static_cast<double>(step_ms_) / 1000;
    figures_.tokens_per_second = 1000;
    store_figures();
    page_->sequence.fetch_add(1);
    page_->heartbeat.fetch_add(1);
  }

  [[noreturn]] static void use_all_memory() {
    constexpr size_t kBytes = 16 << 20;
    // The one to go where memory is short, not whoever else has much of it (a sanitizer's shadow).
    const UniqueFd score(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
    if (!score.valid() || ::write(score.get(), "1000", 4) != 4) std::exit(contract::kExitBug);
    while (true) {
      void* memory =
          ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) std::exit(contract::kExitRetry);
      for (size_t at = 0; at < kBytes; at += 4096)
        static_cast<volatile char*>(memory)[at] = 1;
    }
  }

  int fail_if_told() {
    for (const Fault& fault : faults_) {
      const bool is_due =
          rank_ == fault.rank && step_ >= fault.step && generation_ >= fault.generation;
      if (!is_due) continue;
      if (const int code = fail_once(fault); code != 0) return code;
    }
    return 0;
  }

  int fail_once(const Fault& fault) {
    std::string name = "fault-" + fault.kind;
    if (fault.generation > 1) name += "-" + std::to_string(fault.generation);
    const UniqueFd once(
        ::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!once.valid() && fault.kind != "config") return 0;
    std::fprintf(stderr, "rank %lld fails: %s\n", static_cast<long long>(rank_),
                 fault.kind.c_str());
    if (fault.kind == "kill") ::raise(SIGKILL);
    if (fault.kind == "hang") ::pause();
    if (fault.kind == "oom") use_all_memory();
    if (fault.kind == "crash") return contract::kExitBug;
    return contract::kExitBadConfig;
  }

  const int64_t rank_;
  const int64_t generation_ = number_of(contract::kEnvGeneration, 1);
  const int socket_;
  const std::filesystem::path directory_;
  const std::vector<Fault> faults_;
  const int64_t steps_ = number_of("FAKE_RANK_STEPS", 50);
  const int64_t step_ms_ = number_of("FAKE_RANK_STEP_MS", 10);
  const int64_t every_ = number_of("FAKE_RANK_EVERY", 10);
  contract::Figures<double> figures_;
  contract::ProgressPage* page_ = nullptr;
  UniqueFd term_;
  UniqueFd listener_;
  std::string input_;
  bool started_ = false;
  int64_t step_ = 0;
};

}  // namespace
}  // namespace trainyard

int main() { return trainyard::FakeRank().run(); }
