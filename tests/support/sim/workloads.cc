#include "tests/support/sim/workloads.h"

#include <utility>

namespace trainyard::sim {
namespace {

using std::chrono::seconds;
using Act = std::function<void(SimCluster&)>;

constexpr char kJob[] = "job";

Act create(int64_t nodes, const Json& more = Json::object()) {
  return [spec = job_spec(nodes, more)](SimCluster& world) { world.apply_job(kJob, spec); };
}

Act edit(const Json& change) {
  return [change](SimCluster& world) { world.edit_job(kJob, change); };
}

Act remove(const std::string& propagation) {
  return [propagation](SimCluster& world) { world.delete_job(kJob, propagation); };
}

/// Does something to the live member of an index, if there is one.
Act with_member(int index, std::function<void(SimCluster&, const std::string&)> act) {
  return [index, act = std::move(act)](SimCluster& world) {
    const Json pod = world.member(kJob, index);
    if (pod.is_object()) act(world, meta_text(pod, "name"));
  };
}

Act exits(int index, int code) {
  return with_member(
      index, [code](SimCluster& world, const std::string& pod) { world.exit_pod(pod, code); });
}

Act all_exit(int64_t nodes, int code) {
  return [nodes, code](SimCluster& world) {
    for (int index = 0; index < nodes; ++index)
      exits(index, code)(world);
  };
}

Act deleted(int index, std::optional<int64_t> grace = std::nullopt) {
  return with_member(
      index, [grace](SimCluster& world, const std::string& pod) { world.delete_pod(pod, grace); });
}

/// Deletes the pods of an index that are over.
Act ended_deleted(int index) {
  return [index](SimCluster& world) {
    for (const Json& pod : world.pods_of(kJob)) {
      const std::string phase = member_of(pod, "status").value("phase", "");
      if (label(pod, "trainyard.dev/node-index") != std::to_string(index)) continue;
      if (phase == "Succeeded" || phase == "Failed") world.delete_pod(meta_text(pod, "name"));
    }
  };
}

Act node_of(int index, std::function<void(SimCluster&, const std::string& node)> act) {
  return [index, act = std::move(act)](SimCluster& world) {
    const Json pod = world.member(kJob, index);
    if (pod.is_object()) act(world, member_of(pod, "spec").value("nodeName", ""));
  };
}

const Json kReplace = {{"failurePolicy", {{"restartStrategy", "ReplacePod"}}}};
const Json kSpare = {{"agent", "Auto"},
                     {"numProcPerNode", 2},
                     {"failurePolicy", {{"restartStrategy", "InPlace"}}},
                     {"spares", {{"count", 1}}}};
/// In which a spare is made, whatever goes wrong once.
constexpr seconds kParked{90};

/// A spare that has no index exits.
Act spare_exits(int code) {
  return [code](SimCluster& world) {
    for (const Json& pod : world.pods_of(kJob)) {
      const bool parked = !label(pod, "trainyard.dev/spare").empty() &&
                          label(pod, "trainyard.dev/node-index").empty();
      if (parked) world.exit_pod(meta_text(pod, "name"), code);
    }
  };
}

const Json kElastic = {
    {"elasticPolicy",
     {{"minNodes", 1}, {"pendingTimeoutSeconds", 20}, {"scaleUpSnoozeSeconds", 30}}}};

std::vector<Workload> lives() {
  return {
      {"CreateGang", 4, 2, {{create(3)}}},
      {"Completes", 4, 2, {{create(2)}, {all_exit(2, 0)}}},
      {"OneEndsWellAndIsDeleted",
       4,
       2,
       {{create(3)}, {exits(1, 0), seconds(200)}, {ended_deleted(1), seconds(20)}}},
      {"OneEndsWellAndIsDeletedAndTheOthersEnd",
       4,
       2,
       {{create(2)},
        {exits(0, 0), seconds(200)},
        {ended_deleted(0), seconds(20)},
        {exits(1, 0), seconds(20)}}},
      {"EditedWhileItIsMade",
       4,
       2,
       {{create(3), std::chrono::milliseconds(20)}, {edit({{"rendezvous", {{"port", 29501}}}})}},
       true},
      {"SuspendedAndResumed",
       4,
       2,
       {{create(2)}, {edit({{"suspend", true}})}, {edit({{"suspend", false}})}}},
      {"SuspendedWhileStarting",
       4,
       2,
       {{create(2), std::chrono::milliseconds(300)}, {edit({{"suspend", true}})}},
       true},
      {"GoneAfterItsTime",
       4,
       2,
       {{create(2, {{"ttlSecondsAfterFinished", 20}})}, {all_exit(2, 0), seconds(40)}}},
      {"PastItsDeadline", 4, 2, {{create(2, {{"activeDeadlineSeconds", 15}}), seconds(40)}}},
      {"SuccessOfOne",
       4,
       2,
       {{create(2, {{"successPolicy", {{"rules", {{{"succeededIndexes", "0"}}}}}}})},
        {exits(0, 0)}}},
      {"DeletedInTheBackground", 4, 2, {{create(2)}, {remove("Background")}}},
      {"DeletedInTheForeground", 4, 2, {{create(2)}, {remove("Foreground")}}},
      {"DeletedAsAnOrphan", 4, 2, {{create(2)}, {remove("Orphan")}}},
      {"MadeAgainUnderItsName",
       4,
       2,
       {{create(2)},
        {remove("Background"), std::chrono::milliseconds(10)},
        {create(2), seconds(30)}}},
      {"ScaledUp", 4, 2, {{create(2, kElastic)}, {edit({{"numNodes", 3}})}}},
      {"ScaledDown", 4, 2, {{create(3, kElastic)}, {edit({{"numNodes", 2}})}}},
  };
}

std::vector<Workload> losses() {
  return {
      {"AllRecreated", 4, 2, {{create(3)}, {exits(1, 1), seconds(20)}}},
      {"OneReplaced", 4, 2, {{create(3, kReplace)}, {exits(1, 1), seconds(20)}}},
      {"OneDeletedByHand", 4, 2, {{create(2)}, {deleted(1), seconds(20)}}},
      {"OneDeletedByHandAndReplaced", 4, 2, {{create(2, kReplace)}, {deleted(0), seconds(20)}}},
      {"OneVanishes", 4, 2, {{create(2)}, {deleted(1, 0), seconds(20)}}},
      {"OneVanishesAndIsReplaced", 4, 2, {{create(2, kReplace)}, {deleted(1, 0), seconds(20)}}},
      {"OneVanishesWhileStarting",
       4,
       2,
       {{create(2), std::chrono::milliseconds(120)}, {deleted(1, 0), seconds(20)}},
       true},
      {"OneEvicted",
       4,
       2,
       {{create(2)},
        {with_member(0, [](SimCluster& world, const std::string& pod) { world.evict_pod(pod); }),
         seconds(20)}}},
      {"FailsForGood", 4, 2, {{create(2)}, {exits(0, 64), seconds(20)}}},
      {"FailsByRule",
       4,
       2,
       {{create(2, {{"failurePolicy",
                     {{"rules",
                       {{{"name", "bad"},
                         {"action", "FailJob"},
                         {"onExitCodes", {{"operator", "In"}, {"values", {7}}}}}}}}}})},
        {exits(1, 7), seconds(20)}}},
      {"OutOfBudget",
       4,
       2,
       {{create(2, {{"failurePolicy",
                     {{"budgets", {{{"class", "Application"}, {"maxRestarts", 1}}}}}}})},
        {exits(1, 1), seconds(20)},
        {exits(0, 1), seconds(20)}}},
      {"NodeNotReady",
       3,
       1,
       {{create(2)},
        {node_of(0,
                 [](SimCluster& world, const std::string& node) {
                   world.controllers().set_node_ready(node, false);
                 }),
         seconds(60)}}},
      {"NodeGoneAndReplaced",
       3,
       1,
       {{create(2, kReplace)},
        {node_of(1, [](SimCluster& world,
                       const std::string& node) { world.controllers().remove_node(node); }),
         seconds(30)}}},
      {"ShrunkAndGrown",
       3,
       1,
       {{create(3, kElastic)},
        {node_of(2, [](SimCluster& world,
                       const std::string& node) { world.controllers().remove_node(node); }),
         seconds(60)},
        {[](SimCluster& world) { world.controllers().add_node("node-new", 1); }, seconds(90)}}},
  };
}

std::vector<Workload> promotions() {
  const auto both_exit = [](SimCluster& world) {
    exits(0, 1)(world);
    exits(1, 1)(world);
  };
  return {
      {"ASpareTakesAnIndex", 4, 2, {{create(2, kSpare), kParked}, {exits(1, 1), seconds(60)}}},
      {"ASpareTakesTheFirstIndex", 4, 2, {{create(2, kSpare), kParked}, {deleted(0, 0), kParked}}},
      {"OneSpareForTwo", 4, 2, {{create(2, kSpare), kParked}, {both_exit, kParked}}, true},
      {"ASpareIsLost", 4, 2, {{create(2, kSpare), kParked}, {spare_exits(1), kParked}}},
      {"ASpareIsLostAsItIsPromoted",
       4,
       2,
       {{create(2, kSpare), kParked},
        {exits(1, 1), std::chrono::milliseconds(120)},
        {exits(1, 1), kParked}},
       true},
      {"SuspendedWithASpare",
       4,
       2,
       {{create(2, kSpare), kParked},
        {edit({{"suspend", true}})},
        {edit({{"suspend", false}}), kParked}}},
  };
}

}  // namespace

Json job_spec(int64_t nodes, const Json& more) {
  Json spec = {{"numNodes", nodes},
               {"agent", "None"},
               {"template",
                {{"spec",
                  {{"containers", Json::array({{{"name", "trainer"},
                                                {"image", "trainer:1"},
                                                {"command", Json::array({"train"})}}})}}}}}};
  spec.merge_patch(more);
  return spec;
}

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = [] {
    std::vector<Workload> found = lives();
    for (Workload& promotion : promotions())
      found.push_back(std::move(promotion));
    for (Workload& loss : losses())
      found.push_back(std::move(loss));
    return found;
  }();
  return all;
}

}  // namespace trainyard::sim
