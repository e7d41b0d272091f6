// What a hostile job runs in its pod in place of an agent: it has all that an agent has, its own
// token above all, and does with it what no agent does. For so many seconds
//
// - it floods its own control stream,
// - speaks for a pod of another job, for another job, and for generations that never were,
// - shows tokens that nobody has signed, on many streams at once,
// - throws bytes that are no TLS at the port,
//
// and first it damages what it can reach of the other job's checkpoints. Anything that is answered
// as an agent would be is a breach: a line on standard output, and exit status 1.
//
//   intruder SECONDS VICTIM_JOB_UID VICTIM_POD VICTIM_POD_UID VICTIM_CHECKPOINTS
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <netdb.h>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "agent/agent_options.h"
#include "common/base/unique_fd.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/grpc_channel.h"

namespace trainyard::intruder {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using control::ChannelEvent;
using coordination::FromAgent;

constexpr int kForgers = 20;
constexpr std::chrono::milliseconds kPause{50};

/// Whom a stream speaks for.
struct Identity {
  std::string pod_name;
  std::string pod_uid;
  std::string job_uid;
  int64_t generation = 0;
};

struct Counts {
  int64_t opened = 0;
  int64_t closed = 0;
  int64_t said = 0;
  int64_t breaches = 0;
};

/// One stream that comes again and again.
class Stream {
 public:
  /// `may`: what it says is true, and an answer is no breach.
  Stream(std::string name, const agent::AgentOptions& own, std::filesystem::path token,
         Identity identity, bool may)
      : name_(std::move(name)),
        identity_(std::move(identity)),
        may_(may),
        channel_(own.control_address,
                 control::ChannelSecurity{own.security->authorities, std::move(token)}) {}

  void step(Counts& counts, bool flood) {
    if (!open_ && Clock::now() >= open_at_) {
      open_ = true;
      channel_.open();
    }
    for (ChannelEvent& event : channel_.take())
      take(event, counts);
    if (flood && said_hello_) speak(counts);
  }

 private:
  void take(const ChannelEvent& event, Counts& counts) {
    switch (event.kind) {
      case ChannelEvent::Kind::kOpened:
        ++counts.opened;
        say_hello();
        return;
      case ChannelEvent::Kind::kClosed:
        ++counts.closed;
        open_ = said_hello_ = false;
        open_at_ = Clock::now() + kPause;
        return;
      case ChannelEvent::Kind::kMessage:
        if (may_ || event.message->has_fenced()) return;
        ++counts.breaches;
        std::cout << "BREACH: " << name_ << " was answered: " << event.message->ShortDebugString()
                  << std::endl;
    }
  }

  /// False where the stream is gone, of which take() will hear.
  bool say(FromAgent message) {
    auto& fence = *message.mutable_fence();
    fence.set_term(1'000'000);
    fence.set_generation(identity_.generation);
    fence.set_pod_uid(identity_.pod_uid);
    return channel_.send(message).has_value();
  }

  void say_hello() {
    FromAgent message;
    auto& hello = *message.mutable_hello();
    hello.set_pod_name(identity_.pod_name);
    hello.set_job_uid(identity_.job_uid);
    hello.set_agent_version("intruder");
    hello.set_host_id("here");
    hello.set_ranks_started(true);
    hello.set_table_delivered(true);
    said_hello_ = say(std::move(message));
  }

  /// All that its queue takes: ranks that there are not, losses of peers, ends of ranks.
  void speak(Counts& counts) {
    while (channel_.unsent() < control::kMaxQueuedMessages / 2) {
      FromAgent message;
      if (counts.said % 3 == 0) {
        for (int rank = 0; rank < 64; ++rank) {
          auto& progress = *message.mutable_heartbeat()->add_ranks();
          progress.set_rank(rank);
          progress.set_step(counts.said * 1'000'000);
          progress.set_instruction(std::string(200, 'x'));
        }
      } else if (counts.said % 3 == 1) {
        message.mutable_rank_exited()->set_rank(static_cast<int>(counts.said % 7));
      } else {
        message.mutable_rank_warning()->set_message(std::string(1000, 'w'));
      }
      if (!say(std::move(message))) return;
      ++counts.said;
    }
  }

  const std::string name_;
  const Identity identity_;
  const bool may_;
  control::GrpcChannel channel_;
  bool open_ = false;
  bool said_hello_ = false;
  Clock::time_point open_at_;
};

/// A file of this process's memory that holds a token; the root directory is read-only.
fs::path token_file(const std::string& text) {
  const int fd = ::memfd_create("token", 0);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    std::abort();
  return "/proc/self/fd/" + std::to_string(fd);
}

/// Bytes that are no TLS, on a connection of their own.
void throw_garbage(const std::string& address) {
  const size_t colon = address.rfind(':');
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints,
                    &found) != 0) {
    return;
  }
  const UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0) {
    const std::string garbage(10'000, '\xA5');
    (void)!::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
  }
  ::freeaddrinfo(found);
}

void write_over(const fs::path& file) {
  std::ofstream(file, std::ios::binary | std::ios::in | std::ios::out) << std::string(64, '\xA5');
}

/// The newest checkpoint gets other bytes, and beside it come one of a step that nobody has reached
/// and a generation that nobody has begun. Says how many files it has changed or made.
int damage(const fs::path& checkpoints) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    const bool is_checkpoint = entry.path().filename().string().find("-step-") != std::string::npos;
    if (!is_checkpoint || !fs::exists(entry.path() / "manifest.json")) continue;
    if (newest.empty() || fs::last_write_time(entry) > fs::last_write_time(newest))
      newest = entry.path();
  }
  int files = 0;
  if (newest.empty()) return files;
  for (const auto& file : fs::recursive_directory_iterator(newest)) {
    if (!file.is_regular_file() || file.path().filename() == "manifest.json") continue;
    write_over(file.path());
    ++files;
  }
  const fs::path forged = checkpoints / "g1-step-999999999";
  fs::create_directory(forged);
  fs::copy_file(newest / "manifest.json", forged / "manifest.json");
  std::ofstream(checkpoints / "lineage" / "77.json") << "{\"format\":\"trainyard-lineage\"}";
  return files + 2;
}

int run(const std::vector<std::string>& words) {
  const auto own = agent::read_agent_options(
      {}, [](const char* name) { return static_cast<const char*>(std::getenv(name)); },
      "/intruder");
  if (!own || !own->security) {
    std::cout << "not in a pod with a control stream\n";
    return 2;
  }
  std::cout << "damaged: " << damage(words[4]) << " files" << std::endl;

  const Identity me{own->pod_name, own->pod_uid, own->job_uid, own->generation};
  const fs::path mine = own->security->token;
  const auto with = [&](auto change) {
    Identity identity = me;
    change(identity);
    return identity;
  };
  Counts counts;
  std::vector<std::unique_ptr<Stream>> streams;
  const auto add = [&](const std::string& name, const fs::path& token, const Identity& identity,
                       bool may = false) {
    streams.push_back(std::make_unique<Stream>(name, *own, token, identity, may));
  };
  const Identity victim{words[2], words[3], words[1], 1};
  add("itself", mine, me, true);
  for (int i = 0; i < kForgers; ++i) {
    std::string token = "eyJhbGciOiJSUzI1NiJ9.";
    add("a forged token", token_file(token.append(static_cast<size_t>(100 + i), 'A')), victim);
  }
  const auto end = Clock::now() + std::chrono::seconds(std::stoi(words[0]));
  const auto flood_from = Clock::now() + (end - Clock::now()) / 2;
  // One stream a pod: these take turns, so that each of them is heard; the flood comes after the
  // lies, as nobody is heard after it.
  const Identity lies[] = {victim, with([&](Identity& i) { i.job_uid = victim.job_uid; }),
                           with([&](Identity& i) { i.pod_uid = victim.pod_uid; })};
  while (Clock::now() < end) {
    for (const Identity& lie : lies) {
      Stream liar("a lie", *own, mine, lie, false);
      const auto until = Clock::now() + std::chrono::milliseconds(500);
      while (Clock::now() < until) {
        for (auto& stream : streams)
          stream->step(counts, stream == streams.front() && Clock::now() > flood_from);
        liar.step(counts, false);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      throw_garbage(own->control_address);
    }
  }
  std::cout << "done: " << counts.opened << " streams opened, " << counts.closed << " closed, "
            << counts.said << " messages said, " << counts.breaches << " breaches" << std::endl;
  if (counts.breaches > 0) return 1;
  // So that somebody can read it.
  while (true)
    ::pause();
}

}  // namespace
}  // namespace trainyard::intruder

int main(int argc, char** argv) {
  // The first process of a container is ended by no signal that it does not handle.
  std::signal(SIGTERM, [](int) { ::_exit(143); });
  if (argc != 6) {
    std::cout << "usage: intruder SECONDS JOB_UID POD POD_UID CHECKPOINTS\n";
    return 64;
  }
  return trainyard::intruder::run({argv + 1, argv + argc});
}
