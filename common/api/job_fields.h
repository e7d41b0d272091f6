#pragma once

#include "common/api/engine_fields.h"
#include "common/api/field.h"
#include "common/api/status_fields.h"
#include "common/api/training_job.h"

/// The field tables of TrainingJob's metadata and spec; see field.h.
namespace trainyard::api {

inline constexpr double kMaxSeconds = 315'360'000;  // ten years

template <class V, Is<ObjectMeta> S>
void visit_fields(V& visit, S& meta) {
  visit({.name = "name",
         .description = "Name of the job: a lower-case letter, then lower-case letters, digits and "
                        "'-', at most 57 characters; it becomes part of host names.",
         .need = Need::kRequired,
         .max_length = 253},
        meta.name);
  visit({.name = "namespace", .description = "Kubernetes namespace.", .max_length = 63},
        meta.namespace_name);
  visit({.name = "uid", .description = "Unique id, assigned by the API server."}, meta.uid);
  visit({.name = "resourceVersion", .description = "Version of the object; an opaque text."},
        meta.resource_version);
  visit({.name = "generation",
         .description = "Version of the spec, counted by the API server.",
         .minimum = 0},
        meta.generation);
  visit({.name = "creationTimestamp", .description = "Time at which the object was created."},
        meta.creation_timestamp);
  visit({.name = "deletionTimestamp",
         .description = "Time at which deletion of the object was requested."},
        meta.deletion_timestamp);
  visit({.name = "labels", .description = "Labels of the object."}, meta.labels);
  visit({.name = "annotations", .description = "Annotations of the object.", .max_length = 262144},
        meta.annotations);
  visit({.name = "finalizers",
         .description = "Finalizers that must be removed before the object is deleted."},
        meta.finalizers);
}

template <class V, Is<ElasticPolicy> S>
void visit_fields(V& visit, S& elastic) {
  visit({.name = "minNodes",
         .description = "Smallest number of nodes at which the job runs.",
         .minimum = 1,
         .maximum = 65536},
        elastic.min_nodes);
  visit({.name = "nodeIncrementStep",
         .description = "Difference between consecutive sizes from minNodes on, in nodes.",
         .minimum = 1,
         .maximum = 65536},
        elastic.node_increment_step);
  visit({.name = "allowedNumNodes",
         .description = "Allowed sizes, in nodes, in ascending order.",
         .minimum = 1,
         .maximum = 65536,
         .max_items = 64,
         .default_note = "minNodes + k x nodeIncrementStep"},
        elastic.allowed_num_nodes);
  visit({.name = "scaleUpSnoozeSeconds",
         .description = "Seconds after a resize before the job grows again.",
         .minimum = 0,
         .maximum = kMaxSeconds},
        elastic.scale_up_snooze);
  visit({.name = "pendingTimeoutSeconds",
         .description = "Seconds for which pods may be pending, or partly refused (for example by "
                        "a quota), before the job runs with fewer nodes. Counted from the time at "
                        "which the pods that they replace have left their nodes.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        elastic.pending_timeout);
}

template <class V, Is<SparesSpec> S>
void visit_fields(V& visit, S& spares) {
  visit({.name = "count",
         .description =
             "Pods kept ready to replace a lost pod; needs restartStrategy InPlace and an agent.",
         .minimum = 0,
         .maximum = 64},
        spares.count);
  visit({.name = "mode",
         .description = "Kind of spare. Warm: a pod whose agent waits for its order."},
        spares.mode);
}

template <class V, Is<RestartBudget> S>
void visit_fields(V& visit, S& budget) {
  visit({.name = "class", .description = "Kind of failure.", .need = Need::kRequired},
        budget.failure_class);
  visit({.name = "maxRestarts",
         .description = "Restarts allowed in the window; one more fails the job. If a window has "
                        "more restarts than the status records (at most 100 per class), the "
                        "restarts of the job's whole life count instead.",
         .minimum = 0,
         .maximum = 1'000'000},
        budget.max_restarts);
  visit({.name = "windowSeconds",
         .description = "Length of the sliding window, in seconds.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        budget.window);
}

template <class V, Is<RestartBackoff> S>
void visit_fields(V& visit, S& backoff) {
  visit({.name = "initialSeconds",
         .description = "Seconds before the first restart; doubled per restart since the newest "
                        "checkpoint and within the window of its budget.",
         .minimum = 0,
         .maximum = kMaxSeconds},
        backoff.initial);
  visit({.name = "maxSeconds",
         .description = "Longest wait before a restart, in seconds.",
         .minimum = 0,
         .maximum = kMaxSeconds},
        backoff.max);
}

template <class V, Is<OnExitCodes> S>
void visit_fields(V& visit, S& on) {
  visit({.name = "containerName",
         .description = "Container whose exit code counts when the trainer has failed; it may be a "
                        "sidecar that has ended by then.",
         .max_length = 63,
         .default_note = "the container that ended the pod"},
        on.container_name);
  visit({.name = "operator",
         .description = "Comparison of the exit code with values: in the list or not in it."},
        on.op);
  visit({.name = "values",
         .description = "Exit codes.",
         .need = Need::kRequired,
         .minimum = 0,
         .maximum = 255,
         .max_items = 255},
        on.values);
}

template <class V, Is<OnPodCondition> S>
void visit_fields(V& visit, S& on) {
  visit({.name = "type",
         .description = "Type of the pod condition.",
         .need = Need::kRequired,
         .max_length = 316},
        on.type);
  visit({.name = "status",
         .description = "Status of the pod condition: True, False or Unknown.",
         .max_length = 7},
        on.status);
}

template <class V, Is<FailureRule> S>
void visit_fields(V& visit, S& rule) {
  visit({.name = "name",
         .description = "Name of the rule; a failure that it matches has the reason Rule_<name>.",
         .need = Need::kRequired,
         .max_length = 63},
        rule.name);
  visit({.name = "action",
         .description = "Action for a pod that the rule matches: fail the job, restart it, or "
                        "restart it without counting the restart (Ignore).",
         .need = Need::kRequired},
        rule.action);
  visit({.name = "countTowardsMax",
         .description = "Count the restart against the budget of its class."},
        rule.count_towards_max);
  visit({.name = "onExitCodes",
         .description = "Match by exit code; excludes onPodConditions.",
         .default_note = "none"},
        rule.on_exit_codes);
  visit({.name = "onPodConditions",
         .description = "Match if one of these pod conditions holds; excludes onExitCodes.",
         .max_items = 20,
         .default_note = "none"},
        rule.on_pod_conditions);
}

template <class V, Is<FailurePolicy> S>
void visit_fields(V& visit, S& failure) {
  visit({.name = "restartStrategy",
         .description = "Parts of the job that are replaced when a member fails: all pods, the pod "
                        "that failed, or only its processes. InPlace replaces a pod that is lost "
                        "or has failed three times within the window of a budget (not under "
                        "trainyard run). Without agents, InPlace replaces the pod that failed."},
        failure.restart_strategy);
  visit({.name = "budgets",
         .description = "Restarts allowed, one entry per class of failure.",
         .max_items = 4,
         .default_note =
             "Application 10, Infrastructure 30 and Hang 5 in 6 hours; Preemption 100 in one day"},
        failure.budgets);
  visit({.name = "backoff", .description = "Wait before a restart."}, failure.backoff);
  visit({.name = "rules",
         .description = "Actions for certain failures; the first rule that matches applies.",
         .max_items = 20,
         .default_note = "exit codes 64 and 65 fail the job, everything else restarts it"},
        failure.rules);
  visit({.name = "joinTimeoutSeconds",
         .description = "Seconds within which the agent of a pod that a restart keeps must stop "
                        "its old processes and join; otherwise the pod is replaced.",
         .minimum = 1,
         .maximum = 3600,
         .default_note = "10"},
        failure.join_timeout);
}

template <class V, Is<ProgressPolicy> S>
void visit_fields(V& visit, S& progress) {
  visit({.name = "startupTimeoutSeconds",
         .description = "Seconds within which the first step must be completed.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.startup_timeout);
  visit({.name = "minStallSeconds",
         .description = "Smallest number of seconds without a step that counts as a stall.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.min_stall);
  visit({.name = "maxStallSeconds",
         .description = "Seconds without a step that always count as a stall.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.max_stall);
  visit({.name = "stallFactor",
         .description = "Multiple of the 99th percentile of the step time that counts as a stall, "
                        "within minStallSeconds and maxStallSeconds.",
         .minimum = 2,
         .maximum = 100000},
        progress.stall_factor);
  visit({.name = "onStall",
         .description = "Action on a stall. Report reports it, DumpStacks prints the stacks of the "
                        "ranks, RestartJob replaces all pods, RestartProcess restarts all "
                        "processes in their pods. ReplacePod replaces the pod of the rank that "
                        "caused the stall; ReplaceNode does so on another node."},
        progress.on_stall);
}

template <class V, Is<PersistentVolumeClaim> S>
void visit_fields(V& visit, S& claim) {
  visit({.name = "claimName",
         .description = "Name of the claim, in the job's namespace. A local run uses the folder "
                        "pvc/<claim> of its run directory instead.",
         .need = Need::kRequired,
         .max_length = 253},
        claim.claim_name);
}

template <class V, Is<CheckpointStorage> S>
void visit_fields(V& visit, S& storage) {
  visit({.name = "persistentVolumeClaim",
         .description = "Claim of a volume that all pods share (ReadWriteMany).",
         .need = Need::kRequired},
        storage.persistent_volume_claim);
}

template <class V, Is<CheckpointPolicy> S>
void visit_fields(V& visit, S& checkpoint) {
  visit({.name = "storage",
         .description = "Storage of the checkpoints. Without it, a job in a cluster writes no "
                        "checkpoints, and every restart starts training from the beginning.",
         .default_note = "the run directory of a local run"},
        checkpoint.storage);
  visit({.name = "path",
         .description = "Folder of the checkpoints, relative to the storage.",
         .default_note = "the job's name"},
        checkpoint.path);
  visit({.name = "everySteps",
         .description =
             "Steps between checkpoints; 0 means only when the job is stopped and at its end.",
         .minimum = 0,
         .maximum = kMaxCount},
        checkpoint.every_steps);
  visit({.name = "keepLast",
         .description = "Number of newest checkpoints that are kept.",
         .minimum = 1,
         .maximum = 10000},
        checkpoint.keep_last);
  visit(
      {.name = "memoryEverySteps",
       .description = "Steps between copies of the state in memory, from which ranks resume after "
                      "a restart in place; 0 means no copies. Needs restartStrategy InPlace.",
       .minimum = 0,
       .maximum = kMaxCount,
       .default_note = "with restartStrategy InPlace, the interval at which copying costs at most "
                       "1 % of the step time; otherwise 0"},
      checkpoint.memory_every_steps);
  visit({.name = "memoryReplicas",
         .description = "Copies of a rank's state that the next node keeps in memory, 0 or 1. With "
                        "a copy, a lost pod resumes from memory too. Needs restartStrategy "
                        "InPlace, an engine and at least two nodes.",
         .minimum = 0,
         .maximum = 1,
         .unwritten_zero = true},
        checkpoint.memory_replicas);
  visit({.name = "preemptionCheckpointSeconds",
         .description = "Seconds that ranks have when the job is stopped, for the current step, a "
                        "checkpoint that is being written and the last checkpoint.",
         .minimum = 1,
         .maximum = 86'400},
        checkpoint.preemption_checkpoint);
  visit({.name = "maxAgeSeconds",
         .description = "Seconds after which the newest checkpoint counts as stale.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        checkpoint.max_age);
}

template <class V, Is<SuccessRule> S>
void visit_fields(V& visit, S& rule) {
  visit({.name = "succeededIndexes",
         .description = "Node indexes that must succeed, for example \"0\" or \"0-3,7\".",
         .default_note = "any"},
        rule.succeeded_indexes);
  visit({.name = "succeededCount",
         .description = "Number of these indexes that must succeed.",
         .minimum = 1,
         .maximum = 65536,
         .default_note = "all"},
        rule.succeeded_count);
}

template <class V, Is<SuccessPolicy> S>
void visit_fields(V& visit, S& success) {
  visit({.name = "rules",
         .description = "Rules of which one must hold for the job to be complete.",
         .max_items = 20,
         .default_note = "every node succeeds"},
        success.rules);
}

template <class V, Is<TopologyTerm> S>
void visit_fields(V& visit, S& term) {
  visit({.name = "key",
         .description = "Node label of the domain that the pods should share.",
         .need = Need::kRequired,
         .max_length = 317},
        term.key);
}

template <class V, Is<SchedulingSpec> S>
void visit_fields(V& visit, S& scheduling) {
  visit({.name = "provider", .description = "System that places the pods of a job together."},
        scheduling.provider);
  visit({.name = "queue", .description = "Queue of the provider.", .max_length = 253},
        scheduling.queue);
  visit({.name = "schedulerName",
         .description = "Scheduler of the pods.",
         .max_length = 253,
         .default_note = "the provider's, else the cluster's"},
        scheduling.scheduler_name);
  visit({.name = "topology",
         .description = "Domains within which the pods are kept, widest first.",
         .max_items = 8,
         .planned = true},
        scheduling.topology);
  visit({.name = "priorityClassName",
         .description = "Priority class of the pods.",
         .max_length = 253},
        scheduling.priority_class_name);
  visit(
      {.name = "gangTimeoutSeconds",
       .description = "Seconds after which a job releases its nodes if only some of its pods have "
                      "one, so that other jobs can use them; 0: never.",
       .minimum = 0,
       .maximum = 86400,
       .default_note = "600"},
      scheduling.gang_timeout);
}

template <class V, Is<RendezvousSpec> S>
void visit_fields(V& visit, S& rendezvous) {
  visit({.name = "port",
         .description = "TCP port of MASTER_PORT, for images other than the built-in worker image.",
         .minimum = 1,
         .maximum = 65535},
        rendezvous.port);
}

template <class V, Is<TrainingJobSpec> S>
void visit_fields(V& visit, S& spec) {
  visit({.name = "suspend",
         .description = "Stop the job's pods after a checkpoint, and keep the job."},
        spec.suspend);
  visit({.name = "managedBy",
         .description =
             "Controller that acts on the job; Trainyard ignores jobs of other controllers.",
         .max_length = 253,
         .default_note = "trainyard.dev/trainingjob-controller"},
        spec.managed_by);
  visit({.name = "activeDeadlineSeconds",
         .description = "Seconds after its start at which an unfinished job fails; counted from 0 "
                        "again after a suspension.",
         .minimum = 1,
         .maximum = kMaxSeconds,
         .default_note = "none"},
        spec.active_deadline);
  visit({.name = "ttlSecondsAfterFinished",
         .description = "Seconds after the end of the job at which it is deleted.",
         .minimum = 0,
         .maximum = kMaxSeconds,
         .default_note = "kept"},
        spec.ttl_after_finished);
  visit({.name = "numNodes",
         .description = "Number of pods of the job; with elasticPolicy, the largest number.",
         .minimum = 1,
         .maximum = kMaxNumNodes},
        spec.num_nodes);
  visit({.name = "numProcPerNode",
         .description = "Ranks per pod. auto means the number of GPUs (nvidia.com/gpu) that "
                        "container trainer has in resources.limits, at least 1.",
         .minimum = 1,
         .maximum = kMaxProcPerNode,
         .zero_word = "auto"},
        spec.num_proc_per_node);
  visit({.name = "template",
         .description =
             "Template of the pods, a PodTemplateSpec; the container `trainer` runs the training.",
         .default_note = "with engine, the built-in worker image"},
        spec.pod_template);
  visit(
      {.name = "agent", .description = "Supervision of the processes of a pod by trainyard-agent."},
      spec.agent);
  visit({.name = "engine",
         .description = "Run of the built-in engine.",
         .default_note = "the template's own program"},
        spec.engine);
  visit({.name = "elasticPolicy",
         .description = "Sizes at which the job may run.",
         .default_note = "numNodes only"},
        spec.elastic_policy);
  visit({.name = "spares", .description = "Pods kept ready for replacement."}, spec.spares);
  visit({.name = "failurePolicy", .description = "Handling of failures."}, spec.failure_policy);
  visit({.name = "progressPolicy", .description = "Handling of a job that makes no progress."},
        spec.progress_policy);
  visit({.name = "checkpointPolicy", .description = "Frequency and storage of checkpoints."},
        spec.checkpoint_policy);
  visit({.name = "successPolicy", .description = "Conditions for the job to be complete."},
        spec.success_policy);
  visit({.name = "scheduling", .description = "Placement of the pods."}, spec.scheduling);
  visit({.name = "rendezvous",
         .description = "Rendezvous of processes of images other than the built-in worker image."},
        spec.rendezvous);
  visit({.name = "keepFailedPods",
         .description = "Number of failed pods kept for their logs: first the pod that caused the "
                        "failure, then the newest.",
         .minimum = 0,
         .maximum = 100},
        spec.keep_failed_pods);
}

template <class V, Is<TrainingJob> S>
void visit_fields(V& visit, S& job) {
  visit.constant({.name = "apiVersion", .description = "Version of this API."}, kApiVersion);
  visit.constant({.name = "kind", .description = "Kind of object."}, kKind);
  visit({.name = "metadata", .description = "Name and labels.", .need = Need::kRequired},
        job.metadata);
  visit({.name = "spec", .description = "Desired state of the job.", .need = Need::kRequired},
        job.spec);
  visit({.name = "status", .description = "Observed state of the job; written by the controller."},
        job.status);
}

}  // namespace trainyard::api
