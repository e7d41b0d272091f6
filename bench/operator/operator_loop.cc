// A loop without a mind, which the operator is held against: it makes the pods of all TrainingJobs
// of a namespace and nothing more.
//
//   operator_loop --kubeconfig FILE --namespace NAME [--whole] [--connections N]
//
// The jobs are there and belong to another controller (spec.managedBy). Every body is made before
// the clock runs, answers are not parsed.
//   (default)   the pods alone: as fast as this client can POST
//   --whole     with what a controller cannot do without: the same three watches open and read; of
//               each job the status before the first pod, each second and after the last, a
//               Service, a disruption budget and two events
// One line of JSON on standard output says what was done. Exit codes: 0; 64 wrong usage; 75 a
// request that failed.

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/operator/job_requests.h"
#include "common/base/clock.h"
#include "operator/kube/client.h"
#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"
#include "operator/kube/resource.h"
#include "operator/kube/tls_setup.h"
#include "operator/render/names.h"

namespace trainyard::bench {
namespace {

using nlohmann::json;

constexpr int kExitUsage = 64;
constexpr int kExitFailed = 75;
/// Of one request: far more than a server that is kept busy takes.
constexpr std::chrono::seconds kCallLimit{60};
constexpr std::chrono::minutes kWatchIdle{30};
constexpr std::chrono::seconds kStatusPeriod{1};

struct Options {
  std::string kubeconfig;
  std::string name_space;
  int connections = 32;
  bool whole = false;
};

[[noreturn]] void fail(int code, const std::string& message) {
  std::fprintf(stderr, "operator_loop: %s\n", message.c_str());
  std::_Exit(code);  // threads are in the middle of calls
}

double processor_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A job on its way.
struct Job {
  JobRequests requests;
  std::mutex mutex;  ///< one status write at a time
  std::atomic<int64_t> pods_left = 0;
  std::atomic<bool> begun = false;
};

class Loop {
 public:
  Loop(kube::Transport& transport, const Options& options)
      : transport_(transport), options_(options) {}

  void add(JobRequests requests) {
    auto job = std::make_unique<Job>();
    job->requests = std::move(requests);
    job->pods_left = std::ssize(job->requests.pods);
    pods_ += std::ssize(job->requests.pods);
    if (options_.whole) {
      tasks_.push_back({job.get(), kBegin});
    } else {
      add_pods(*job);
    }
    jobs_.push_back(std::move(job));
  }

  /// Returns when everything has been answered.
  void run() {
    open_jobs_ = std::ssize(jobs_);
    std::vector<std::jthread> threads;
    if (options_.whole) threads.emplace_back([this](const std::stop_token& stop) { tick(stop); });
    for (int i = 0; i < options_.connections; ++i)
      threads.emplace_back([this] { work(); });
    for (size_t i = options_.whole ? 1 : 0; i < threads.size(); ++i)
      threads[i].join();
  }

  int64_t pods() const { return pods_; }
  int64_t requests() const { return requests_; }

 private:
  static constexpr int64_t kBegin = -1;
  struct Task {
    Job* job = nullptr;
    int64_t index = kBegin;  ///< of the pod
  };

  void add_pods(Job& job) {
    for (int64_t i = 0; i < std::ssize(job.requests.pods); ++i)
      tasks_.push_back({&job, i});
  }

  std::string send(const kube::Request& request) {
    const auto answer = transport_.send(request, {.limit = kCallLimit, .idle = {}, .stop = {}});
    ++requests_;
    if (!answer) fail(kExitFailed, answer.error().message);
    if (answer->status >= 300) fail(kExitFailed, request.path + ": " + answer->body);
    return answer->body;
  }

  void put_status(Job& job) {
    const std::lock_guard lock(job.mutex);
    const json answer = json::parse(send(status_request(job.requests)));
    job.requests.resource_version = answer["metadata"]["resourceVersion"];
  }

  void begin(Job& job) {
    put_status(job);
    for (const kube::Request& request : job.requests.before)
      send(request);
    job.begun = true;
    const std::lock_guard lock(mutex_);
    add_pods(job);
    changed_.notify_all();
  }

  void end(Job& job) {
    if (options_.whole) {
      put_status(job);
      for (const kube::Request& request : job.requests.after)
        send(request);
    }
    const std::lock_guard lock(mutex_);
    --open_jobs_;
    changed_.notify_all();
  }

  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty() || open_jobs_ == 0; });
      if (tasks_.empty()) return;
      const Task task = tasks_.front();
      tasks_.pop_front();
      lock.unlock();
      if (task.index == kBegin) {
        begin(*task.job);
        continue;
      }
      send(task.job->requests.pods[static_cast<size_t>(task.index)]);
      if (--task.job->pods_left == 0) end(*task.job);
    }
  }

  /// What users look at while pods are made: each second a status of every job that has begun.
  void tick(const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any waiting;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      waiting.wait_for(lock, stop, kStatusPeriod, [] { return false; });
      for (const auto& job : jobs_) {
        if (stop.stop_requested()) return;
        if (job->begun && job->pods_left > 0) put_status(*job);
      }
    }
  }

  kube::Transport& transport_;
  const Options& options_;
  std::vector<std::unique_ptr<Job>> jobs_;
  int64_t pods_ = 0;
  std::atomic<int64_t> requests_ = 0;
  std::mutex mutex_;  ///< guards all below
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  int64_t open_jobs_ = 0;
};

/// Reads the three watches of the operator and throws away what comes.
class Watches {
 public:
  explicit Watches(kube::Transport& transport) : transport_(transport) {
    open(kube::kTrainingJobs, "");
    open(kube::kNodes, "");
    open(kube::kPods, render::kLabelJobName);
  }
  int64_t lines() const { return lines_; }

 private:
  void open(const kube::Resource& resource, const std::string& label) {
    kube::Request request{.method = kube::Method::kGet,
                          .path = kube::collection_path(resource, ""),
                          .query = "watch=true&allowWatchBookmarks=true",
                          .body = {},
                          .content_type = {}};
    if (!label.empty()) request.query += "&labelSelector=trainyard.dev%2Fjob-name";
    threads_.emplace_back([this, request](const std::stop_token& stop) {
      auto opened =
          transport_.open(request, {.limit = kCallLimit, .idle = kWatchIdle, .stop = stop});
      if (!opened) fail(kExitFailed, opened.error().message);
      if (!opened->lines) fail(kExitFailed, request.path + ": " + opened->body);
      while (true) {
        const auto line = opened->lines->next_line();
        if (!line || !*line) return;
        ++lines_;
      }
    });
  }

  kube::Transport& transport_;
  std::atomic<int64_t> lines_ = 0;
  std::vector<std::jthread> threads_;
};

int run(const Options& options) {
  const SystemClock clock;
  const auto config = kube::load_kubeconfig(options.kubeconfig, {});
  if (!config) fail(kExitUsage, config.error().message);
  if (!config->authority.empty()) kube::leave_system_authorities_unread();
  const auto transport = kube::make_http_transport(*config, clock, "operator_loop");
  if (!transport) fail(kExitUsage, transport.error().message);
  const kube::Client client(**transport, clock, {});
  Loop loop(**transport, options);
  kube::ListOptions page;
  do {
    auto listed = client.list(kube::kTrainingJobs, options.name_space, page);
    if (!listed) fail(kExitFailed, listed.error().to_error("list of TrainingJobs").message);
    for (const json& job : listed->items) {
      auto requests = requests_of(job, clock.now());
      if (!requests) fail(kExitUsage, requests.error().message);
      loop.add(*std::move(requests));
    }
    page.next = listed->next;
  } while (!page.next.empty());

  std::unique_ptr<Watches> watches;
  if (options.whole) watches = std::make_unique<Watches>(**transport);
  const double processor_before = processor_seconds();
  const MonoTime began = clock.mono();
  loop.run();
  const std::chrono::duration<double> took = clock.mono() - began;
  fmt::print("{}\n", json({{"pods", loop.pods()},
                           {"requests", loop.requests()},
                           {"seconds", took.count()},
                           {"watch_lines", watches ? watches->lines() : 0},
                           {"processor_seconds", processor_seconds() - processor_before}})
                         .dump());
  return 0;
}

[[noreturn]] void usage() {
  fail(kExitUsage,
       "usage: operator_loop --kubeconfig FILE --namespace NAME [--whole] [--connections N]");
}

Options options_of(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--whole") {
      options.whole = true;
      continue;
    }
    if (i + 1 == arguments.size()) usage();
    const std::string& value = arguments[i + 1];
    if (arguments[i] == "--kubeconfig") {
      options.kubeconfig = value;
    } else if (arguments[i] == "--namespace") {
      options.name_space = value;
    } else if (arguments[i] == "--connections") {
      options.connections = std::atoi(value.c_str());
    } else {
      usage();
    }
    ++i;
  }
  if (options.kubeconfig.empty() || options.name_space.empty() || options.connections < 1) usage();
  return options;
}

}  // namespace
}  // namespace trainyard::bench

int main(int argc, char** argv) {
  return trainyard::bench::run(
      trainyard::bench::options_of(std::vector<std::string>(argv + 1, argv + argc)));
}
