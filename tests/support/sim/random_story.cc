#include "tests/support/sim/random_story.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>

#include "tests/support/sim/play.h"
#include "tests/support/sim/workloads.h"

namespace trainyard::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kJobs = 3;
constexpr int kActs = 24;
/// A story that is too short goes on with so many acts at a time, and not for ever.
constexpr int kMoreActs = 6;
constexpr int kActsMax = 240;
/// A watch that fell silent ends after two minutes, and a list may have to wait for its turn. Less
/// than the five minutes for which the word of a creation holds that no watch shows: what only that
/// time mends is not well.
constexpr std::chrono::minutes kHealing{4};
constexpr std::chrono::minutes kRest{10};

uint64_t mixed(uint64_t digest, const std::string& text) {
  constexpr uint64_t kPrime = 1099511628211ULL;  // FNV-1a
  for (const char c : text)
    digest = (digest ^ static_cast<unsigned char>(c)) * kPrime;
  return digest;
}

/// How faults fall upon a kind of write. The rarer it is, the more of it, so that no cell of the
/// matrix is far behind the others.
struct Odds {
  uint64_t struck_one_in;  ///< of these writes, in any story
  int focus;               ///< of so many stories it is the write that is struck again and again
};
constexpr std::array<Odds, kWriteKinds> kOdds = {{{12, 1},   // status
                                                  {2, 1},    // try pod
                                                  {12, 1},   // create pod
                                                  {6, 2},    // unlabel pod
                                                  {6, 3},    // delete pod
                                                  {3, 1},    // service
                                                  {4, 1},    // budget
                                                  {4, 1},    // event
                                                  {2, 8}}};  // delete job

/// Which write meets which fault: one pair that is struck again and again, and others by chance.
class FaultDice {
 public:
  /// Without `freezes` no process stands still, and the judge need not be lenient.
  FaultDice(bool freezes, std::mt19937_64& random)
      : random_(random), freezes_(freezes), fault_(fault()), write_(focus(random)) {}

  WriteKind write() const { return write_; }

  Fault operator()(WriteKind kind, int64_t /*index*/) const {
    if (kind == write_ && random_() % 2 == 0) return fault_;
    if (random_() % kOdds.at(static_cast<size_t>(kind)).struck_one_in != 0) return Fault::kNone;
    return fault();
  }

 private:
  /// Half of the stories have no freeze: in the others it is as likely as two.
  Fault fault() const {
    constexpr uint64_t kOthers = kFaults - 2;
    static_assert(static_cast<int>(Fault::kFreeze) == kFaults - 1);
    const uint64_t drawn = random_() % (freezes_ ? kOthers + 2 : kOthers);
    return drawn < kOthers ? static_cast<Fault>(1 + drawn) : Fault::kFreeze;
  }

  static WriteKind focus(std::mt19937_64& random) {
    int all = 0;
    for (const Odds& odds : kOdds)
      all += odds.focus;
    auto drawn = static_cast<int>(random() % static_cast<uint64_t>(all));
    int kind = 0;
    while (drawn >= kOdds.at(static_cast<size_t>(kind)).focus)
      drawn -= kOdds.at(static_cast<size_t>(kind++)).focus;
    return static_cast<WriteKind>(kind);
  }

  std::mt19937_64& random_;
  const bool freezes_;
  const Fault fault_;
  const WriteKind write_;
};

class Story {
 public:
  explicit Story(uint64_t seed)
      : logger_(std::getenv("TRAINYARD_SIM_LOG") != nullptr
                    ? Logger::to_stderr(LogLevel::kInfo, LogFormat::kText)
                    : nullptr),
        world_(options(seed)),
        random_(seed * 7919 + 17),
        freezes_(seed % 2 == 0) {
    if (seed % 4 == 3) meddling_.emplace(seed);
    const FaultDice dice(freezes_, random_);
    short_lived_ = dice.write() == WriteKind::kDeleteJob || dice.write() == WriteKind::kTryPod;
    world_.set_fault_plan([dice](WriteKind kind, int64_t index) { return dice(kind, index); });
  }

  Told run() {
    for (int job = 0; job < kJobs; ++job)
      create(job);
    for (int acts = 0; acts < kActsMax; ++acts) {
      const bool enough = world_.reconciles() >= kReconcilesMin && world_.faults() >= kFaultsMin;
      if (acts >= kActs && enough && acts % kMoreActs == 0) break;
      act();
      if (meddling_ && (*meddling_)() % 4 == 0) take_away();
      world_.run_for(milliseconds(pick(8000)));
    }
    end_all();
    Told told;
    told.faults = world_.faults();
    told.reconciles = world_.reconciles();
    told.matrix = world_.matrix();
    told.violations = judge(world_, {.late_writers = freezes_, .late_views = true}, kRest);
    check_rest(told.violations);
    for (const auto& event : world_.api().audit()) {
      if (event.verb == "create" && event.resource == "pods" && event.code == 201) ++told.pods;
      if (logger_) show(event);
      told.digest = mixed(told.digest, event.time + event.user + event.verb + event.name);
    }
    return told;
  }

 private:
  /// One request, for people.
  void show(const testing_support::AuditEvent& event) const {
    const Json& status = member_of(event.answer, "status");
    const bool of_job = event.resource == "trainingjobs/status" && status.is_object();
    logger_->info("request", {{"time", event.time},
                              {"user", event.user},
                              {"verb", event.verb},
                              {"resource", event.resource},
                              {"name", event.name},
                              {"code", event.code},
                              {"status", of_job ? status.dump() : ""}});
  }

  SimCluster::Options options(uint64_t seed) const {
    SimCluster::Options made;
    made.seed = seed;
    made.shuffled = true;
    made.standby = true;
    made.nodes = 5;
    made.pods_per_node = 3;
    made.logger = logger_.get();
    return made;
  }

  int64_t pick(int64_t below) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(below));
  }
  bool chance(int64_t of) { return pick(of) == 0; }
  std::string name_of_job(int64_t job) const { return "job-" + std::to_string(job); }

  /// Of a size and of policies by chance.
  void create(int64_t job) {
    Json more = Json::object();
    more["failurePolicy"]["backoff"]["maxSeconds"] = 16;
    if (chance(2)) more["failurePolicy"]["restartStrategy"] = "ReplacePod";
    if (short_lived_ || chance(3))
      more["ttlSecondsAfterFinished"] = 2 + pick(short_lived_ ? 3 : 20);
    if (chance(4)) {
      more["elasticPolicy"] = {
          {"minNodes", 1}, {"pendingTimeoutSeconds", 15}, {"scaleUpSnoozeSeconds", 20}};
    }
    if (chance(8)) more["activeDeadlineSeconds"] = 60;
    if (chance(6)) more["keepFailedPods"] = 0;
    world_.apply_job(name_of_job(job), job_spec(2 + pick(3), more));
  }

  void act() {
    const int64_t job = pick(kJobs);
    const std::string name = name_of_job(job);
    const std::string phase = phase_of(world_, name);
    if (phase == "none") {
      create(job);
      return;
    }
    // What is over makes room for another story.
    if ((phase == "Complete" || phase == "Failed") && !short_lived_ && chance(2)) {
      remove(name);
      return;
    }
    if (short_lived_ && chance(2)) {
      finish(name);
      return;
    }
    switch (pick(16)) {
      case 0:
        world_.edit_job(name, {{"suspend", true}});
        break;
      case 1:
      case 2:
        world_.edit_job(name, {{"suspend", false}});
        break;
      case 3:
        remove(name);
        break;
      case 4:
        scale(name);
        break;
      case 5:
      case 6:
        lose_node();
        break;
      case 7:
        world_.hand_over();
        break;
      case 8:
        world_.set_lag(static_cast<size_t>(pick(2)), milliseconds(pick(3) * 700));
        break;
      case 9:
        finish(name);
        break;
      default:
        hurt_pod(name);
    }
  }

  void remove(const std::string& name) {
    static constexpr std::array<const char*, 2> kWays = {"Background", "Foreground"};
    world_.delete_job(name, kWays.at(static_cast<size_t>(pick(2))));
  }

  /// Only elastic jobs may be scaled while they run (the definition's rules).
  void scale(const std::string& name) {
    const Json spec = member_of(world_.job(name), "spec");
    if (spec.contains("elasticPolicy")) world_.edit_job(name, {{"numNodes", 2 + pick(3)}});
  }

  void lose_node() {
    const std::string node = "node-" + std::to_string(pick(5));
    const bool there = world_.api().store().find({"nodes", "", node}) != nullptr;
    if (!there) {
      world_.controllers().add_node(node, 3);
    } else if (chance(3)) {
      world_.controllers().remove_node(node);
    } else {
      world_.controllers().set_node_ready(node, chance(2));
    }
  }

  void finish(const std::string& name) {
    for (const Json& pod : world_.pods_of(name))
      world_.exit_pod(meta_text(pod, "name"), 0);
  }

  void hurt_pod(const std::string& name) {
    const std::vector<Json> pods = world_.pods_of(name);
    if (pods.empty()) return;
    const std::string pod = meta_text(pods[static_cast<size_t>(pick(std::ssize(pods)))], "name");
    static constexpr std::array kCodes = {1, 69, 75, 137, 143, 1};
    switch (pick(4)) {
      case 0:
        world_.delete_pod(pod);
        break;
      case 1:
        world_.delete_pod(pod, 0);
        break;
      case 2:
        world_.evict_pod(pod);
        break;
      default:
        world_.exit_pod(pod, kCodes.at(static_cast<size_t>(pick(std::ssize(kCodes)))));
    }
  }

  /// What stands beside the pods, one object of anybody's.
  void take_away() {
    static constexpr std::array kPlurals = {"services", "endpointslices", "poddisruptionbudgets"};
    const auto all = world_.api().store().list(kPlurals.at((*meddling_)() % kPlurals.size()), "");
    if (all.empty()) return;
    const auto one = std::next(all.begin(), static_cast<int64_t>((*meddling_)() % all.size()));
    world_.delete_object(one->first);
  }

  /// Of what stands beside the pods of the job that is called so now.
  int64_t standing(const std::string& name, const char* plural) {
    const std::string uid = meta_text(world_.job(name), "uid");
    const auto all = world_.api().store().list(plural, "");
    return std::count_if(all.begin(), all.end(), [&](const auto& entry) {
      const Json& labels = member_of((*entry.second)["metadata"], "labels");
      return labels.is_object() && labels.value("trainyard.dev/job-uid", "") == uid;
    });
  }

  /// N2: at rest what is to stand beside a job's pods stands; where some of them have succeeded
  /// already, a disruption budget may.
  void check_companions(const std::string& name, int64_t target, int64_t done,
                        std::vector<std::string>& violations) {
    const int64_t services = standing(name, "services");
    const int64_t budgets = standing(name, "poddisruptionbudgets");
    const int64_t budgets_min = target > 1 && done == 0 ? 1 : 0;
    if (services == 1 && budgets >= budgets_min && budgets <= 1) return;
    violations.push_back("N2: " + name + " of " + std::to_string(target) + " nodes runs with " +
                         std::to_string(services) + " Services and " + std::to_string(budgets) +
                         " disruption budgets");
  }

  /// Nodes come back, nobody is suspended, faults end; the world has time to come to rest.
  void end_all() {
    world_.heal();
    for (int node = 0; node < 5; ++node) {
      const std::string name = "node-" + std::to_string(node);
      if (world_.api().store().find({"nodes", "", name})) {
        world_.controllers().set_node_ready(name, true);
      } else {
        world_.controllers().add_node(name, 3);
      }
    }
    for (int job = 0; job < kJobs; ++job)
      world_.edit_job(name_of_job(job), {{"suspend", false}});
    world_.run_for(kHealing);
  }

  /// L1: what is to run runs whole, what is over is over.
  void check_rest(std::vector<std::string>& violations) {
    for (int number = 0; number < kJobs; ++number) {
      const std::string name = name_of_job(number);
      const Json job = world_.job(name);
      if (!job.is_object()) continue;
      const AtRest rest = at_rest(world_, name);
      const bool over = rest.phase == "Complete" || rest.phase == "Failed";
      const Json& nodes = member_of(member_of(job, "status"), "nodes");
      const int64_t target = nodes.is_object() ? nodes.value("target", int64_t{0}) : -1;
      const int64_t done = nodes.is_object() ? nodes.value("succeeded", int64_t{0}) : 0;
      const bool runs = rest.phase == "Running" && std::ssize(rest.members) + done == target;
      if (over ? !rest.members.empty() : !runs) {
        violations.push_back("L1: " + name + " is " + rest.phase + " with " +
                             std::to_string(rest.members.size()) + " of " + std::to_string(target) +
                             " members alive");
      }
      if (rest.phase == "Running") check_companions(name, target, done, violations);
      const int64_t ready = nodes.is_object() ? nodes.value("ready", int64_t{0}) : 0;
      const int64_t going = nodes.is_object() ? nodes.value("condemned", int64_t{0}) : 0;
      if (ready != std::ssize(rest.members) || going != 0) {
        violations.push_back("L1: the status of " + name + " counts " + std::to_string(ready) +
                             " ready and " + std::to_string(going) + " condemned, " +
                             std::to_string(rest.members.size()) + " and 0 there are");
      }
    }
  }

  const std::unique_ptr<Logger> logger_;
  SimCluster world_;
  std::mt19937_64 random_;
  const bool freezes_;
  std::optional<std::mt19937_64> meddling_;  ///< a user's who takes away what is the operator's
  bool short_lived_ = false;  ///< jobs come and go quickly, so that those writes are many
};

}  // namespace

Told tell_story(uint64_t seed) { return Story(seed).run(); }

}  // namespace trainyard::sim
