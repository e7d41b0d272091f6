#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "tests/support/sim/sim_cluster.h"
#include "tests/support/sim/workloads.h"

namespace trainyard::sim {

/// What is left of a job when everything has come to rest.
struct AtRest {
  std::string phase = "none";
  int64_t generation = 0;
  int64_t restarts = 0;
  int64_t resizes = 0;
  int64_t attempts = 0;
  int64_t companions = 0;          ///< Services and PodDisruptionBudgets
  std::map<int, int64_t> members;  ///< created generation of each live member, by index
  int64_t pods = 0;                ///< of any kind
  int64_t made = 0;                ///< pods made all in all
  /// Of jobs that were Complete or Failed, kept in ConfigMap trainyard-ledgers.
  int64_t ledgers = 0;

  bool operator==(const AtRest&) const = default;
};
std::ostream& operator<<(std::ostream& out, const AtRest& rest);

AtRest at_rest(SimCluster& world, const std::string& job);
/// Of that alone: "none" where there is no job, "untouched" where it has no status.
std::string phase_of(SimCluster& world, const std::string& job);

/// What one play of a workload came to.
struct Played {
  AtRest rest;
  int64_t writes = 0;
  int64_t events = 0;
  int64_t faults = 0;
  std::vector<std::string> violations;  ///< of the invariants, those of rest included
};

/// What the judge lets pass, as of testing_support::Case.
struct Lenience {
  bool late_writers = false;
  bool late_views = false;
};

/// How it is disturbed.
struct Disturbance {
  SimCluster::FaultPlan faults;
  SimCluster::EventPlan events;
  bool standby = false;
  bool late_writers = false;  ///< as of Lenience
};

Played play(const Workload& workload, const Disturbance& disturbance);

/// Judges the world's log and its rest: the invariants of tests/support/invariants.h, and that for
/// this long nothing is written any more.
std::vector<std::string> judge(SimCluster& world, const Lenience& lenience, Duration rest);

}  // namespace trainyard::sim
