// Agents of many pods in one process, without ranks: each holds a control stream of its own and
// says what an agent says whose ranks train. For bench/operator/streams.py.
//
//   stream_agents ADDRESS AUTHORITIES
//
// Standard input has a line for each agent, `POD UID JOB_UID GENERATION INDEX TOKEN_FILE`, and may
// go on while others run. Standard output has a line for each thing that happens,
// `UNIX_SECONDS UID WORD`: opened, start, listening, table, stop, fenced, closed.
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/proto/coordination.pb.h"
#include "common/worker_contract.h"
#include "control/coordinator/grpc_channel.h"

namespace trainyard::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// As trainyard-agent's.
constexpr std::chrono::milliseconds kHeartbeatInterval{150};
using control::ChannelEvent;
using coordination::FromAgent;

/// The pod that an agent is for.
struct Pod {
  std::string name;
  std::string uid;
  std::string job_uid;
  int64_t generation = 0;
  int index = 0;
  std::string token_file;
};

class Agent {
 public:
  Agent(Pod pod, const std::string& address, const std::string& authorities)
      : pod_(std::move(pod)),
        channel_(address, control::ChannelSecurity{authorities, pod_.token_file}) {
    channel_.open();
  }

  int wake_fd() const { return channel_.wake_fd(); }

  void read() {
    for (ChannelEvent& event : channel_.take()) {
      if (event.kind == ChannelEvent::Kind::kOpened) {
        tell("opened");
        say_hello();
      } else if (event.kind == ChannelEvent::Kind::kClosed) {
        tell("closed");
        started_ = false;
        // As it is refused before the operator has seen its pod; anything else ends the
        // measurement.
        if (!ended_) open_at_ = Clock::now() + std::chrono::milliseconds(500);
      } else {
        obey(*event.message);
      }
    }
  }

  void on_time(Clock::time_point now) {
    if (open_at_ && now >= *open_at_) {
      open_at_.reset();
      channel_.open();
    }
    if (!started_ || now < next_heartbeat_) return;
    next_heartbeat_ = now + kHeartbeatInterval;
    beat();
  }

 private:
  void tell(const char* word) const {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::printf("%.6f %s %s\n", now, pod_.uid.c_str(), word);
  }

  void obey(const coordination::ToAgent& message) {
    term_ = message.fence().term();
    if (message.has_start_generation()) {
      tell("start");
      started_ = true;
      table_ = false;
      rank_ = message.start_generation().ranks(0);
      next_heartbeat_ = Clock::now();
      FromAgent listening;
      auto& address = *listening.mutable_ranks_listening()->add_ranks();
      address.set_rank(rank_);
      address.set_address("192.0.2.1:29400");
      address.set_pid(1);
      tell("listening");
      say(std::move(listening));
    } else if (message.has_rank_table()) {
      tell("table");
      table_ = true;
    } else if (message.has_stop_ranks() || message.has_fenced()) {
      tell(message.has_fenced() ? "fenced" : "stop");
      ended_ = true;
      started_ = false;
    }
  }

  void say_hello() {
    FromAgent message;
    auto& hello = *message.mutable_hello();
    hello.set_pod_name(pod_.name);
    hello.set_job_uid(pod_.job_uid);
    hello.set_node_index(pod_.index);
    hello.set_agent_version("bench");
    hello.set_agent_pid(1);
    hello.set_host_id("host-" + std::to_string(pod_.index));
    hello.set_ranks_started(started_);
    hello.set_table_delivered(table_);
    say(std::move(message));
  }

  /// Ten steps a second.
  void beat() {
    FromAgent message;
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_rank(rank_);
    progress.set_phase(
        static_cast<uint32_t>(table_ ? contract::Phase::kTraining : contract::Phase::kRendezvous));
    if (table_) progress.set_step(++beats_ * 3 / 2);
    progress.set_total_steps(1'000'000);
    progress.set_loss(2.5);
    progress.set_gradient_norm(1);
    progress.set_tokens_per_second(100'000);
    progress.set_step_seconds(0.1);
    progress.set_checkpoint_step(-1);
    progress.set_restored_step(0);
    progress.set_beats(beats_);
    progress.set_arrivals(beats_);
    progress.set_instruction("GATHER c2");
    say(std::move(message));
  }

  void say(FromAgent message) {
    message.mutable_fence()->set_term(term_);
    message.mutable_fence()->set_generation(pod_.generation);
    message.mutable_fence()->set_pod_uid(pod_.uid);
    (void)channel_.send(message);  // a stream that is gone says so itself
  }

  const Pod pod_;
  control::GrpcChannel channel_;
  int64_t term_ = 0;
  int rank_ = 0;
  bool started_ = false;
  bool table_ = false;
  bool ended_ = false;
  int64_t beats_ = 0;
  Clock::time_point next_heartbeat_;
  std::optional<Clock::time_point> open_at_;
};

/// Every agent has a few descriptors.
void raise_limit_of_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

void watch(int epoll, int fd, Agent* agent) {
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.ptr = agent;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &interest);
}

/// The lines that have come; false at the end of input.
bool read_lines(std::string& pending, std::vector<std::string>& lines) {
  std::array<char, 1 << 16> chunk{};
  const ssize_t got = ::read(STDIN_FILENO, chunk.data(), chunk.size());
  if (got <= 0) return false;
  pending.append(chunk.data(), static_cast<size_t>(got));
  for (size_t end; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1))
    lines.push_back(pending.substr(0, end));
  return true;
}

int run(const std::string& address, const std::string& authorities) {
  raise_limit_of_descriptors();
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  watch(epoll.get(), STDIN_FILENO, nullptr);
  std::vector<std::unique_ptr<Agent>> agents;
  std::string pending;
  std::array<epoll_event, 256> ready{};
  while (true) {
    const int count = ::epoll_wait(epoll.get(), ready.data(), static_cast<int>(ready.size()), 10);
    for (int i = 0; i < count; ++i) {
      if (auto* agent = static_cast<Agent*>(ready[static_cast<size_t>(i)].data.ptr)) {
        agent->read();
        continue;
      }
      std::vector<std::string> lines;
      if (!read_lines(pending, lines)) return 0;
      for (const std::string& line : lines) {
        std::istringstream words(line);
        Pod pod;
        words >> pod.name >> pod.uid >> pod.job_uid >> pod.generation >> pod.index >>
            pod.token_file;
        agents.push_back(std::make_unique<Agent>(std::move(pod), address, authorities));
        watch(epoll.get(), agents.back()->wake_fd(), agents.back().get());
      }
    }
    const auto now = Clock::now();
    for (const auto& agent : agents)
      agent->on_time(now);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: stream_agents ADDRESS AUTHORITIES\n";
    return 64;
  }
  return trainyard::bench::run(argv[1], argv[2]);
}
