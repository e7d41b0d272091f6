#pragma once

#include <string>

#include "common/api/training_job.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// What an API server said about a manifest.
struct ServerAnswer {
  std::string not_asked;  ///< why it was not asked; empty where it was
  std::string refusal;    ///< its words, one line; empty where it takes the manifest
};

/// Asks the API server of the current kubectl context whether it takes the job and a pod of its
/// template, by `kubectl apply --dry-run=server -o json` with the kubectl on PATH. The pod has the
/// containers of the manifest in their order, so indexes in the answer are those of the manifest.
/// Changes nothing in the cluster. Errors: kIo.
Result<ServerAnswer> ask_server(const std::string& manifest, const api::TrainingJob& job);

}  // namespace trainyard::cli
