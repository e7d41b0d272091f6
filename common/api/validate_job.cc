#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <set>
#include <utility>

#include "common/api/job_size.h"
#include "common/api/planned.h"
#include "common/api/pod_places.h"
#include "common/api/rules.h"
#include "common/api/validate.h"
#include "common/text/quantity.h"

namespace trainyard::api {
namespace {

constexpr size_t kMaxContainers = 16;
constexpr size_t kMaxEnv = 256;
constexpr size_t kMaxJobName = 57;  // and a hash and an index make a host name of at most 63

constexpr std::array<std::string_view, 27> kReservedEnv = {
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_MAX_RESTARTS",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
    "KUBEFLOW_TRAINER_SERVER_URL",
    "KUBEFLOW_TRAINER_SERVER_CA_CERT",
    "KUBEFLOW_TRAINER_SERVER_TOKEN",
};

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return is_lower(c) || (c >= 'A' && c <= 'Z'); }

std::string number(int64_t value) { return std::to_string(value); }

template <ApiEnum E>
std::string name(E value) {
  return std::string(name_of(value));
}

/// ^[a-z]([-a-z0-9]{0,55}[a-z0-9])?$
bool is_job_name(std::string_view text) {
  return is_dns_label(text) && is_lower(text[0]) && text.size() <= kMaxJobName;
}

/// ^[A-Za-z][A-Za-z0-9_-]*$: becomes part of a condition's reason.
bool is_rule_name(std::string_view text) {
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '_';
  });
}

/// Whether its command must be known: what an image runs without one only the container runtime
/// knows.
bool needs_command(const TrainingJobSpec& spec, const Container& container) {
  if (spec.engine || spec.agent == AgentMode::kNone) return false;
  const bool alone = spec.pod_template->containers.size() == 1;
  return container.name == kTrainerContainer || (alone && needs_injected_agent(spec));
}

void check_container(const TrainingJobSpec& spec, const Container& container, const Rules& rules) {
  rules.require(is_dns_label(container.name), "name", text::describe(container.name),
                "a lower-case name of at most 63 letters, digits and '-'");
  const bool built_in = spec.engine && container.name == kTrainerContainer;
  rules.require(built_in || !container.image.empty(), "image", "nothing", "a container image");
  rules.require(!needs_command(spec, container) || !container.command.empty(), "command", "nothing",
                "the command, which the agent starts once per process (or agent: None)");
  rules.require(container.env.size() <= kMaxEnv, "env",
                number(std::ssize(container.env)) + " items",
                "at most " + std::to_string(kMaxEnv) + " items");
  for (size_t i = 0; i < std::min(container.env.size(), kMaxEnv); ++i) {
    const Rules variable = rules.below("env", i);
    const std::string& env_name = container.env[i].name;
    variable.require(!env_name.empty(), "name", "nothing", "the variable's name");
    variable.require(!is_reserved_env(env_name), "name", env_name,
                     "another name: Trainyard sets this one for every process");
  }
}

void check_template(const TrainingJobSpec& spec, const Rules& rules) {
  const PodTemplate& pod = *spec.pod_template;
  const bool never = pod.restart_policy.empty() || pod.restart_policy == "Never";
  rules.require(never, "spec.restartPolicy", text::describe(pod.restart_policy),
                "Never: failurePolicy controls restarts");
  rules.require(pod.node_name.empty(), "spec.nodeName", text::describe(pod.node_name),
                "no nodeName: use nodeSelector or affinity");
  for (const auto& [label, value] : pod.labels) {
    rules.require(!label.starts_with("trainyard.dev/"), "metadata.labels." + label,
                  text::describe(value), "a label with another prefix: trainyard.dev/ is reserved");
  }
  const size_t count = pod.containers.size();
  rules.require(count >= 1, "spec.containers", "an empty list", "the container `trainer`");
  rules.require(count <= kMaxContainers, "spec.containers", std::to_string(count) + " containers",
                "at most " + std::to_string(kMaxContainers) + " containers");
  std::set<std::string> names;
  for (size_t i = 0; i < std::min(count, kMaxContainers); ++i) {
    const Container& container = pod.containers[i];
    const Rules below = rules.below("spec.containers", i);
    check_container(spec, container, below);
    below.require(names.insert(container.name).second, "name", text::describe(container.name),
                  "a name that no other container has");
  }
  rules.require(count <= 1 || names.contains(kTrainerContainer), "spec.containers",
                std::to_string(count) + " containers, none named trainer",
                "one named trainer, whose exit ends the pod");
}

void check_elastic(const TrainingJobSpec& spec, const Rules& rules) {
  const ElasticPolicy& elastic = *spec.elastic_policy;
  rules.require(elastic.min_nodes <= spec.num_nodes, "elasticPolicy.minNodes",
                number(elastic.min_nodes), "at most numNodes (" + number(spec.num_nodes) + ")",
                {"numNodes"});
  const std::vector<int64_t>& allowed = elastic.allowed_num_nodes;
  if (allowed.empty()) return;
  const Rules below = rules.below("elasticPolicy");
  for (size_t i = 1; i < allowed.size(); ++i) {
    below.require(allowed[i - 1] < allowed[i], text::join_path("allowedNumNodes", i),
                  number(allowed[i]), "more than the previous item, " + number(allowed[i - 1]));
  }
  below.require(allowed.front() >= elastic.min_nodes, "allowedNumNodes[0]", number(allowed.front()),
                "at least minNodes (" + number(elastic.min_nodes) + ")", {"minNodes"});
  const bool some = std::any_of(allowed.begin(), allowed.end(), [&](int64_t nodes) {
    return nodes <= spec.num_nodes && nodes >= elastic.min_nodes;
  });
  below.require(some, "allowedNumNodes", "no size from minNodes to numNodes",
                "one from " + number(elastic.min_nodes) + " to " + number(spec.num_nodes),
                {"minNodes"});
  below.require(elastic.node_increment_step == 1, "nodeIncrementStep",
                number(elastic.node_increment_step), "1 or nothing, as allowedNumNodes is given");
}

void check_rule(const FailureRule& rule, const TrainingJobSpec& spec, const Rules& rules) {
  rules.require(is_rule_name(rule.name), "name", text::describe(rule.name),
                "a letter and then letters, digits, '-' and '_'");
  const bool codes = rule.on_exit_codes.has_value();
  const bool conditions = !rule.on_pod_conditions.empty();
  rules.require(codes || conditions, "onExitCodes", "nothing", "onExitCodes or onPodConditions",
                {"onPodConditions"});
  rules.require(!codes || !conditions, "onPodConditions", "a list beside onExitCodes",
                "one of the two");
  rules.require(rule.count_towards_max || rule.action == RuleAction::kRestartJob, "countTowardsMax",
                "false", "nothing, as action is not RestartJob", {"action"});
  for (size_t i = 0; i < rule.on_pod_conditions.size(); ++i) {
    const std::string& status = rule.on_pod_conditions[i].status;
    rules.below("onPodConditions", i)
        .require(status == "True" || status == "False" || status == "Unknown", "status",
                 text::describe(status), "\"True\", \"False\" or \"Unknown\"");
  }
  if (!codes) return;
  const Rules below = rules.below("onExitCodes");
  const OnExitCodes& on = *rule.on_exit_codes;
  const auto zero = std::find(on.values.begin(), on.values.end(), 0);
  below.require(on.op == ExitCodeOperator::kNotIn || zero == on.values.end(),
                text::join_path("values", static_cast<size_t>(zero - on.values.begin())), "0",
                "a failure code, 1 to 255");
  if (on.container_name.empty() || !spec.pod_template) return;
  const auto& containers = spec.pod_template->containers;
  const bool known =
      std::any_of(containers.begin(), containers.end(),
                  [&](const Container& container) { return container.name == on.container_name; });
  below.require(known, "containerName", text::describe(on.container_name),
                "a container of the template");
}

void check_failure_policy(const TrainingJobSpec& spec, const Rules& rules) {
  const FailurePolicy& policy = spec.failure_policy;
  std::set<FailureClass> classes;
  for (size_t i = 0; i < policy.budgets.size(); ++i) {
    const FailureClass failure_class = policy.budgets[i].failure_class;
    rules.below("budgets", i)
        .require(classes.insert(failure_class).second, "class", name(failure_class),
                 "each class once");
  }
  rules.require(policy.backoff.initial <= policy.backoff.max, "backoff.initialSeconds",
                number(policy.backoff.initial.count()),
                "at most maxSeconds (" + number(policy.backoff.max.count()) + ")",
                {"backoff.maxSeconds"});
  std::set<std::string> names;
  for (size_t i = 0; i < policy.rules.size(); ++i) {
    const Rules below = rules.below("rules", i);
    check_rule(policy.rules[i], spec, below);
    below.require(names.insert(policy.rules[i].name).second, "name",
                  text::describe(policy.rules[i].name), "a name that no other rule has");
  }
}

void check_success_policy(const TrainingJobSpec& spec, const Rules& rules) {
  for (size_t i = 0; i < spec.success_policy.rules.size(); ++i) {
    const SuccessRule& rule = spec.success_policy.rules[i];
    const Rules below = rules.below("successPolicy.rules", i);
    below.require(!rule.succeeded_indexes.empty() || rule.succeeded_count.has_value(),
                  "succeededIndexes", "nothing", "succeededIndexes or succeededCount",
                  {"succeededCount"});
    int64_t indexes = spec.num_nodes;
    if (!rule.succeeded_indexes.empty()) {
      const auto ranges = parse_indexes(rule.succeeded_indexes);
      below.require(ranges.has_value(), "succeededIndexes", text::describe(rule.succeeded_indexes),
                    "ascending indexes such as \"0\" or \"0-3,7\"");
      if (!ranges) continue;
      // An elastic job is scaled while it runs, and must not lose its success policy by that: of
      // indexes that it has not nothing is waited for.
      below.require(spec.elastic_policy || ranges->back().last < spec.num_nodes, "succeededIndexes",
                    text::describe(rule.succeeded_indexes),
                    "indexes below numNodes (" + number(spec.num_nodes) + ")");
      indexes = 0;
      for (const IndexRange& range : *ranges)
        indexes += range.last - range.first + 1;
    }
    below.require(spec.elastic_policy || rule.succeeded_count.value_or(1) <= indexes,
                  "succeededCount", number(rule.succeeded_count.value_or(1)),
                  "at most " + number(indexes) + ", the number of indexes", {"succeededIndexes"});
  }
}

void check_scheduling(const SchedulingSpec& scheduling, const Rules& rules) {
  rules.require(scheduling.queue.empty() || scheduling.provider != SchedulingProvider::kNone,
                "queue", text::describe(scheduling.queue), "no queue, as provider is None",
                {"provider"});
}

/// What numProcPerNode says, and comes to.
std::string ranks_found(const TrainingJobSpec& spec) {
  const std::string ranks = number(ranks_per_node(spec));
  return spec.num_proc_per_node == kAutoProcPerNode ? "auto, counted as " + ranks + " here" : ranks;
}

/// A rank of the engine takes one GPU, or a part of one. CUDA shows a process only one part, so all
/// ranks of a pod see the same part.
void check_gpus(const TrainingJobSpec& spec, const Rules& rules) {
  const int64_t gpus = gpus_of_trainer(spec);
  const DeviceKind device = spec.engine->device;
  const Container* trainer = trainer_of(spec);
  if (trainer != nullptr && !trainer->gpu_part.empty() && device != DeviceKind::kCpu) {
    rules.require(ranks_per_node(spec) == 1, "numProcPerNode", ranks_found(spec),
                  "1, as the trainer's resources.limits name " + trainer->gpu_part +
                      ", a part of a GPU: the ranks of a pod all see the same part; use one rank "
                      "per pod and more nodes (numNodes)",
                  {"template.spec.containers"});
  }
  if (gpus == 0 || device == DeviceKind::kAuto) return;
  const int64_t wanted = device == DeviceKind::kCuda ? ranks_per_node(spec) : 0;
  rules.require(gpus == wanted, "template.spec.containers",
                number(gpus) + " of " + kGpuResource + " in the trainer's resources.limits",
                device == DeviceKind::kCuda ? number(wanted) + ", one per rank (numProcPerNode)"
                                            : std::string("none, as engine.device is Cpu"),
                {"numProcPerNode", "engine.device"});
}

/// Ranks that share every layer exchange activations in each of them: they are neighbours on one
/// node, as the tensor axis is the fastest.
void check_tensor_groups(const TrainingJobSpec& spec, const Rules& rules) {
  const int64_t tensor = spec.engine->parallelism.tensor;
  const int64_t each = ranks_per_node(spec);
  if (spec.num_nodes == 1 || tensor <= 1 || each % tensor == 0) return;
  const int64_t below = each / tensor * tensor;
  rules.require(false, "numProcPerNode", ranks_found(spec),
                (below > 0 ? number(below) + " or " : "") + number(below + tensor) +
                    ", a multiple of engine.parallelism.tensor (" + number(tensor) +
                    "), so that ranks that share every layer are on one node",
                {"engine.parallelism.tensor"});
}

void check_spares(const TrainingJobSpec& spec, const Rules& rules) {
  if (spec.spares.count == 0) return;
  const std::string found = number(spec.spares.count);
  rules.require(spec.failure_policy.restart_strategy == RestartStrategy::kInPlace, "spares.count",
                found, "0, as only failurePolicy.restartStrategy InPlace promotes spares",
                {"failurePolicy.restartStrategy"});
  rules.require(spec.engine || needs_injected_agent(spec), "spares.count", found,
                "0, as these pods have no agent; spares need an engine, or agent: Auto and "
                "numProcPerNode other than 1",
                {"agent", "numProcPerNode"});
}

/// The ranks of a job that is not elastic are cut along all axes. Of an elastic one some size must
/// be, and its shard follows its ranks (layout::mesh_of).
void check_axes(const TrainingJobSpec& spec, const Rules& rules) {
  if (rules.faults().faulted(rules.at("engine.parallelism"))) return;
  check_tensor_groups(spec, rules);
  const bool is_elastic = spec.elastic_policy.has_value();
  const ParallelismSpec& parallelism = spec.engine->parallelism;
  const std::pair<const char*, int64_t> axes[] = {{"tensor", parallelism.tensor},
                                                  {"pipeline", parallelism.pipeline},
                                                  {"context", parallelism.context},
                                                  {"shard", is_elastic ? 0 : parallelism.shard}};
  constexpr int64_t kBeyondRanks = int64_t{1} << 40;  // so that no product overflows
  int64_t multiple = 1;
  std::string words;
  for (const auto& [axis, size] : axes) {
    if (size <= 1) continue;
    multiple = std::min(multiple * size, kBeyondRanks);
    words += (words.empty() ? "" : " x ") + std::string(axis) + " " + number(size);
  }
  if (is_elastic) {
    const int64_t least = multiple / std::gcd(multiple, ranks_per_node(spec));
    rules.require(
        spec.num_nodes >= least, "numNodes",
        number(spec.num_nodes) + " (" + text::counted(ranks_of(spec), "rank") + ")",
        "at least " + number(least) + ", for the ranks of some size to be a multiple of " + words,
        {"numProcPerNode"});
    return;
  }
  // One node is given other ranks, several nodes others beside them.
  const bool alone = spec.num_nodes == 1 && multiple <= kMaxProcPerNode;
  const int64_t size = alone ? ranks_per_node(spec) : spec.num_nodes;
  const int64_t each = alone ? 1 : ranks_per_node(spec);
  const int64_t step = multiple / std::gcd(multiple, each);
  const int64_t below = size / step * step;
  rules.require(
      size == below, alone ? "numProcPerNode" : "numNodes",
      alone ? ranks_found(spec) : number(size) + " (" + text::counted(size * each, "rank") + ")",
      (below > 0 ? number(below) + " or " : "") + number(below + step) +
          ", for the ranks to be a multiple of " + words,
      {"numNodes", "numProcPerNode"});
}

/// What one of the sizes of an elastic job must be (largest_allowed).
std::string size_wanted(const TrainingJobSpec& spec) {
  const EngineSpec& engine = *spec.engine;
  const int64_t pipeline = engine.parallelism.pipeline;
  const bool interleaves = engine.parallelism.pipeline_schedule == PipelineSchedule::kInterleaved;
  return "one from minNodes (" + number(spec.elastic_policy->min_nodes) + ") to numNodes (" +
         number(spec.num_nodes) + ") whose ranks are a multiple of " +
         number(engine.parallelism.model_ranks()) + " and at most " +
         number(engine.parallelism.model_ranks()) + " x " + number(engine.batch.global_sequences) +
         " (batch.globalSequences)" +
         (interleaves ? ", with a multiple of pipeline (" + number(pipeline) +
                            ") micro-batches per data-parallel rank under Interleaved"
                      : "");
}

void check_sizes(const TrainingJobSpec& spec, const Rules& rules) {
  if (spec.elastic_policy) check_elastic(spec, rules);
  if (!spec.engine) return;
  const bool sizes_known = !rules.faults().faulted(rules.at("numNodes")) &&
                           !rules.faults().faulted(rules.at("numProcPerNode"));
  if (!sizes_known) return;
  check_gpus(spec, rules);
  check_axes(spec, rules);
  int64_t nodes = spec.num_nodes;
  if (spec.elastic_policy) {
    for (const char* field : {"numNodes", "elasticPolicy", "engine.parallelism", "engine.batch"}) {
      if (rules.faults().faulted(rules.at(field))) return;
    }
    const std::optional<int64_t> largest = largest_allowed(spec, spec.num_nodes);
    rules.require(largest.has_value(), "elasticPolicy", "no size at which the engine can train",
                  size_wanted(spec));
    if (!largest) return;
    nodes = *largest;
  }
  // A machine may have more GPUs than the manifest says.
  const bool may_be_alone =
      nodes * ranks_per_node(spec) == 1 && spec.num_proc_per_node != kAutoProcPerNode;
  rules.require(!may_be_alone || spec.engine->runtime.transport != Transport::kNccl,
                "engine.runtime.transport", "Nccl",
                "Auto with one rank, which has no peers; or a larger numNodes or numProcPerNode",
                {"numNodes", "numProcPerNode"});
  validate_world(*spec.engine, nodes * ranks_per_node(spec), rules.at("engine"), rules.faults());
}

/// Copies of states in memory with the next node.
void check_replicas(const TrainingJobSpec& spec, const Rules& rules) {
  constexpr char kField[] = "checkpointPolicy.memoryReplicas";
  const std::string found = number(spec.checkpoint_policy.memory_replicas);
  const bool none = spec.checkpoint_policy.memory_replicas == 0;
  rules.require(none || spec.failure_policy.restart_strategy == RestartStrategy::kInPlace, kField,
                found, "0, as only failurePolicy.restartStrategy InPlace resumes from memory",
                {"failurePolicy.restartStrategy"});
  rules.require(none || spec.checkpoint_policy.memory_every_steps != 0, kField, found,
                "0, as checkpointPolicy.memoryEverySteps 0 keeps no states in memory",
                {"checkpointPolicy.memoryEverySteps"});
  rules.require(none || spec.engine.has_value(), kField, found,
                "0, as only ranks of the engine keep states in memory");
  rules.require(none || spec.num_nodes > 1, kField, found,
                "0, as a job of one node has no other node to keep a copy", {"numNodes"});
}

void check_spec(const TrainingJobSpec& spec, const Rules& rules) {
  rules.require(spec.pod_template.has_value() || spec.engine.has_value(), "engine", "nothing",
                "engine, or a template with its own program", {"template"});
  rules.require(!spec.engine || spec.agent == AgentMode::kAuto, "agent", "None",
                "Auto, as the agent starts the engine's ranks");
  if (spec.pod_template) check_template(spec, rules.below("template"));
  if (spec.engine) validate_engine(*spec.engine, rules.at("engine"), rules.faults());
  check_sizes(spec, rules);
  check_failure_policy(spec, rules.below("failurePolicy"));
  const ProgressPolicy& progress = spec.progress_policy;
  rules.require(progress.min_stall <= progress.max_stall, "progressPolicy.minStallSeconds",
                number(progress.min_stall.count()),
                "at most maxStallSeconds (" + number(progress.max_stall.count()) + ")",
                {"progressPolicy.maxStallSeconds"});
  validate_checkpoint_policy(spec.checkpoint_policy, rules.at("checkpointPolicy"), rules.faults());
  const int64_t memory_steps = spec.checkpoint_policy.memory_every_steps.value_or(0);
  rules.require(
      memory_steps == 0 || spec.failure_policy.restart_strategy == RestartStrategy::kInPlace,
      "checkpointPolicy.memoryEverySteps", number(memory_steps),
      "0, as only failurePolicy.restartStrategy InPlace resumes from memory",
      {"failurePolicy.restartStrategy"});
  check_replicas(spec, rules);
  check_spares(spec, rules);
  check_success_policy(spec, rules);
  check_scheduling(spec.scheduling, rules.below("scheduling"));
}

/// True for a path that stays below where it starts.
bool stays_below(std::string_view path) {
  if (path.starts_with('/')) return false;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    if (path.substr(0, slash) == "..") return false;
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return true;
}

}  // namespace

bool needs_injected_agent(const TrainingJobSpec& spec) {
  return !spec.engine && spec.agent == AgentMode::kAuto && spec.num_proc_per_node != 1;
}

std::span<const std::string_view> reserved_env() { return kReservedEnv; }

bool is_reserved_env(std::string_view name) {
  return name.starts_with("TRAINYARD_") ||
         std::find(kReservedEnv.begin(), kReservedEnv.end(), name) != kReservedEnv.end();
}

bool is_dns_label(std::string_view name) {
  constexpr size_t kMaxLabel = 63;  // RFC 1123 section 2.1, RFC 1035 section 2.3.4
  if (name.empty() || name.size() > kMaxLabel) return false;
  if (name.front() == '-' || name.back() == '-') return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

bool is_dns_subdomain(std::string_view name) {
  constexpr size_t kMaxSubdomain = 253;
  if (name.empty() || name.size() > kMaxSubdomain) return false;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    if (!is_dns_label(name.substr(0, dot))) return false;
    if (dot == name.size()) return true;
    name.remove_prefix(dot + 1);
  }
}

std::optional<std::vector<IndexRange>> parse_indexes(std::string_view text) {
  std::vector<IndexRange> ranges;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](int64_t& value) {
    if (at == end || !is_digit(*at)) return false;
    const auto result = std::from_chars(at, end, value);
    at = result.ptr;
    return result.ec == std::errc();
  };
  while (true) {
    IndexRange range;
    if (!read(range.first)) return std::nullopt;
    range.last = range.first;
    if (at != end && *at == '-') {
      ++at;
      if (!read(range.last) || range.last <= range.first) return std::nullopt;
    }
    if (!ranges.empty() && range.first <= ranges.back().last) return std::nullopt;
    ranges.push_back(range);
    if (at == end) return ranges;
    if (*at++ != ',') return std::nullopt;
  }
}

void validate_checkpoint_policy(const CheckpointPolicy& policy, const std::string& path,
                                FaultList& faults) {
  BoundsChecker bounds(faults, path);
  visit_fields(bounds, policy);
  const Rules rules(faults, path);
  rules.require(stays_below(policy.path), "path", text::describe(policy.path),
                "a relative path without ..");
  if (!policy.storage) return;
  const std::string& claim = policy.storage->persistent_volume_claim.claim_name;
  rules.require(is_dns_subdomain(claim), "storage.persistentVolumeClaim.claimName",
                text::describe(claim), "the name of a PersistentVolumeClaim");
}

/// Label that names the Kueue queue of a job.
constexpr char kKueueLabel[] = "kueue.x-k8s.io/queue-name";

void validate_job(const TrainingJob& job, FaultList& faults) {
  PlannedChecker::check_struct(job, "", faults);
  BoundsChecker bounds(faults, "");
  visit_fields(bounds, job);
  const Rules metadata(faults, "metadata");
  metadata.require(is_job_name(job.metadata.name), "name", text::describe(job.metadata.name),
                   "a lower-case letter, then at most 56 lower-case letters, digits and '-', no "
                   "'-' at the end");
  metadata.require(job.metadata.namespace_name.empty() || is_dns_label(job.metadata.namespace_name),
                   "namespace", text::describe(job.metadata.namespace_name),
                   "a lower-case name of at most 63 letters, digits and '-'");
  // A job that has started continues: earlier operators ignored the label.
  const auto queue = job.metadata.labels.find(kKueueLabel);
  const bool is_queued = queue != job.metadata.labels.end();
  metadata.require(!is_queued || job.status.membership.generation > 0,
                   std::string("labels.") + kKueueLabel,
                   is_queued ? text::describe(queue->second) : "",
                   "no such label, because Kueue does not know TrainingJobs: the job would bypass "
                   "the queue");
  check_spec(job.spec, Rules(faults, "spec"));
  if (job.spec.pod_template) check_pod_places(job, "spec.template", faults);
}

std::vector<Fault> validate(const TrainingJob& job, const std::string& file) {
  FaultList faults(file);
  validate_job(job, faults);
  return faults.take();
}

}  // namespace trainyard::api
