#pragma once

#include <filesystem>
#include <optional>

#include "common/base/error.h"
#include "common/worker_contract.h"

namespace trainyard::cli {

/// RUN/result.json: what a complete run came to, as rank 0 told it, in the form of the worker
/// contract. Kept so that whoever ends the job, or looks at it later, knows it too.
Status write_result(const std::filesystem::path& run_dir, const contract::RunResult& result);

/// That file's, else the newest that an agent left in its pod's folder when no run was there to be
/// told. nullopt where there is none or it is damaged: it is shown, nothing depends on it.
std::optional<contract::RunResult> read_result(const std::filesystem::path& run_dir);

/// That of the pod alone.
std::optional<contract::RunResult> read_pod_result(const std::filesystem::path& run_dir,
                                                   const std::string& pod);

}  // namespace trainyard::cli
