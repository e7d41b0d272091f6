#pragma once

#include <filesystem>
#include <string>

#include "common/base/error.h"
#include "control/observed.h"

/// How a pod's supervisor tells a later `trainyard run`, which is not its parent, how it ended.
namespace trainyard::control::local {

/// Folder of the pod's own files (log, pod.json, exit.json), set by LocalCluster for each pod.
inline constexpr char kEnvPodDir[] = "TRAINYARD_POD_DIR";

/// Takes the room that write_pod_exit may need, for a disk that is full by then. Errors: kIo.
Status reserve_pod_exit(const std::filesystem::path& pod_dir);

/// Writes `pod_dir`/exit.json durably, into what was reserved where there is no other room; the
/// supervisor does this last before it exits, with the code it exits with. Errors: kIo.
Status write_pod_exit(const std::filesystem::path& pod_dir, const std::string& pod_uid,
                      const ContainerExit& exit);

/// Reads `pod_dir`/exit.json. Errors: kNotFound when there is none of this UID; kInvalidData.
Result<ContainerExit> read_pod_exit(const std::filesystem::path& pod_dir,
                                    const std::string& pod_uid);

}  // namespace trainyard::control::local
