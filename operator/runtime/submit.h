#pragma once

#include <chrono>
#include <iosfwd>
#include <stop_token>
#include <string>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "operator/kube/client.h"

namespace trainyard::operator_runtime {

/// What `trainyard-operator submit` is told; docs/reference/operator.md describes each flag.
struct SubmitOptions {
  std::string kubeconfig;
  std::string context;
  std::string file;
  std::string ns;  ///< empty: the manifest's, else the context's
  std::chrono::seconds timeout{300};
  bool replace = false;                       ///< a job of the same name that is there goes first
  bool keep = false;                          ///< the job stays when it is over
  Duration period = std::chrono::seconds(1);  ///< between looks
};

enum class JobEnd { kComplete, kFailed };

/// Gives the API server the job of a manifest, waits until it is over, says on `out` what becomes
/// of it, and removes it again. `ns` is the namespace where neither options nor manifest name one.
/// Blocks for `timeout` at most. Answers that may be better later are waited for, but the
/// creation's own. Errors: kInvalidConfig and kIo for the file; kAlreadyExists; kDeadline with the
/// job's last phase; kAborted on stop; what the API server says.
Result<JobEnd> submit(const kube::Client& client, const Clock& clock, const SubmitOptions& options,
                      const std::string& ns, const std::stop_token& stop, std::ostream& out);

}  // namespace trainyard::operator_runtime
