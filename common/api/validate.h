#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/fault_list.h"
#include "common/api/training_job.h"

/// The rules that values must obey: the bounds of the field tables and everything that relates one
/// field to another. Pure; decoding applies them, and so must whoever changes a decoded job.
namespace trainyard::api {

/// Everything wrong with a job; lines are 0. For jobs changed after decoding (`--nodes`,
/// `--procs`).
std::vector<Fault> validate(const TrainingJob& job, const std::string& file = "<job>");

/// Adds what is wrong to `faults`, leaving out rules whose fields have a fault already.
void validate_job(const TrainingJob& job, FaultList& faults);

/// The engine's own rules. `path` is where it stands ("spec.engine"; empty at the top of a file).
void validate_engine(const EngineSpec& engine, const std::string& path, FaultList& faults);

/// The rules that tie the engine to the number of ranks.
void validate_world(const EngineSpec& engine, int64_t world_size, const std::string& path,
                    FaultList& faults);

/// Bounds of a checkpoint policy.
void validate_checkpoint_policy(const CheckpointPolicy& policy, const std::string& path,
                                FaultList& faults);

/// Whether trainyard-agent is put into the pods to start their program once a rank: they run a
/// program of their own, `agent` is not None, and a pod is more than one rank. Where it is one, the
/// kubelet supervises as well.
bool needs_injected_agent(const TrainingJobSpec& spec);

/// Environment variables that we set and a template must not: the listed ones, and all that start
/// with TRAINYARD_.
bool is_reserved_env(std::string_view name);
std::span<const std::string_view> reserved_env();

/// Whether two paths of a container name one place: "/dev/shm" and "/dev//shm/".
bool is_same_place(std::string_view a, std::string_view b);

/// True for an RFC 1123 subdomain of at most 253 characters (names of most Kubernetes objects).
bool is_dns_subdomain(std::string_view name);
/// True for an RFC 1123 label of at most 63 characters.
bool is_dns_label(std::string_view name);

/// The parts of a list such as "0-3,7" as closed ranges, ascending; nullopt when it is none.
struct IndexRange {
  int64_t first = 0;
  int64_t last = 0;

  bool operator==(const IndexRange&) const = default;
};
std::optional<std::vector<IndexRange>> parse_indexes(std::string_view text);

}  // namespace trainyard::api
