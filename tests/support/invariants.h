#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/audit_log.h"

namespace trainyard::testing_support {

/// Who is judged, and by what.
struct Case {
  const std::vector<AuditEvent>* events = nullptr;
  /// Users whose name begins so are the operator's processes.
  std::string_view operator_user;
  /// A process that stood still may carry out, late, what it had begun: a pod of a generation that
  /// is over by now, or of a job that has ended meanwhile. It must be gone at rest.
  bool late_writers = false;
  /// Whoever has written a job's newest status may see late that its user has deleted the job, and
  /// make a pod of it meanwhile. It must be gone at rest.
  bool late_views = false;
  nlohmann::json remaining;  ///< list of the pods at rest
  nlohmann::json jobs;       ///< list of the jobs at rest
};

/// The judge of every run under faults, of the simulated server's log and of the real one's. What
/// is broken, a sentence each:
///   S1  one member for an index of a job at any time, and at rest
///   S2  every pod has its job as its owner; none is made for, or left of, a job that is gone
///   S3  no DELETE or PATCH without a UID, no PUT without a version; nothing is deleted or made,
///   and
///       no spare gets an index, that the status, as it is stored then, does not announce
///   S4  what the operator has deleted is not made again under its name
///   S5  a status goes forward: observedGeneration, generations one at a time and each with its
///       restart, resize or start; no more restarts than pods that failed or were taken away by
///       others before their index was told to have ended well, hangs aside; a pod that is
///       blamed for a rank's end before it has ended ends so; what is Complete or Failed stays so;
///       nothing is Complete, Failed or Suspended while a pod of it runs
///   S6  the pods of one generation are made from one configuration
///   S7  in every status each millisecond since the job's start, up to counted.time, is in exactly
///       one category of the goodput ledger, up to the end for a finished job; and counted.time
///       never goes back
/// Judged are the operator's writes; what others write, statuses among it, is the world it is in.
std::vector<std::string> invariant_violations(const Case& judged);

}  // namespace trainyard::testing_support
