#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"
#include "common/base/time.h"
#include "control/local/process.h"
#include "control/observed.h"

/// RUN/pods/<name>/pod.json: what another process must know to adopt or end a pod.
namespace trainyard::control::local {

/// One pod on disk.
struct PodRecord {
  std::string name;
  std::string uid;
  std::string job_uid;
  int node_index = 0;            ///< -1 of a spare that has none
  std::optional<int64_t> spare;  ///< its number, where it was made as one
  int64_t created_generation = 0;
  bool member = true;
  Time created_at;
  ProcessId process;
  std::optional<Time> kill_at;        ///< being deleted: SIGKILL follows then
  std::optional<ContainerExit> exit;  ///< ended

  bool terminating() const { return kill_at.has_value(); }
};

inline constexpr char kLogFile[] = "log";

/// Writes the record durably into its folder, which exists. Errors: kIo.
Status write_pod_record(const std::filesystem::path& pod_dir, const PodRecord& record);

/// The text of pod.json.
std::string encode_pod_record(const PodRecord& record);

/// Reads it back. Errors: kInvalidData naming the member; a process id that no pod can have (a
/// signal to it would reach others) is refused.
Result<PodRecord> decode_pod_record(std::string_view text);

/// Reads one. Errors: kNotFound, kInvalidData.
Result<PodRecord> read_pod_record(const std::filesystem::path& pod_dir);

/// Takes the record away and leaves the logs. Errors: kIo.
Status remove_pod_record(const std::filesystem::path& pod_dir);

/// The records below `pods_dir`, sorted by name; folders without one are logs of pods that are
/// gone. Errors: kInvalidData for a damaged record.
Result<std::vector<PodRecord>> read_pod_records(const std::filesystem::path& pods_dir);

/// Removes the folders of pods that are gone, all but the `keep` newest.
void prune_logs(const std::filesystem::path& pods_dir, size_t keep);

/// The last lines of a file, at most `limit_bytes`; empty when it cannot be read.
std::string tail_of(const std::filesystem::path& path, int64_t limit_bytes);

}  // namespace trainyard::control::local
