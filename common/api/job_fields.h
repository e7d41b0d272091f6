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
  visit(
      {.name = "name",
       .description = "The job's name: a lower-case letter, then letters, digits and '-', at most "
                      "57 characters; it becomes a host name.",
       .need = Need::kRequired,
       .max_length = 253},
      meta.name);
  visit({.name = "namespace", .description = "Kubernetes namespace.", .max_length = 63},
        meta.namespace_name);
  visit({.name = "uid", .description = "Unique id, given by the API server."}, meta.uid);
  visit({.name = "resourceVersion", .description = "Version of the object, opaque."},
        meta.resource_version);
  visit({.name = "generation",
         .description = "Version of the spec, counted by the API server.",
         .minimum = 0},
        meta.generation);
  visit({.name = "creationTimestamp", .description = "When the object was created."},
        meta.creation_timestamp);
  visit({.name = "deletionTimestamp", .description = "When its deletion was asked for."},
        meta.deletion_timestamp);
  visit({.name = "labels", .description = "Labels of the object."}, meta.labels);
  visit({.name = "annotations", .description = "Annotations of the object.", .max_length = 262144},
        meta.annotations);
  visit({.name = "finalizers", .description = "Who must agree before the object goes."},
        meta.finalizers);
}

template <class V, Is<ElasticPolicy> S>
void visit_fields(V& visit, S& elastic) {
  visit({.name = "minNodes",
         .description = "Fewest nodes the job runs with.",
         .minimum = 1,
         .maximum = 65536},
        elastic.min_nodes);
  visit({.name = "nodeIncrementStep",
         .description = "Nodes by which sizes above minNodes differ.",
         .minimum = 1,
         .maximum = 65536},
        elastic.node_increment_step);
  visit({.name = "allowedNumNodes",
         .description = "The only sizes allowed, in nodes, ascending.",
         .minimum = 1,
         .maximum = 65536,
         .max_items = 64,
         .default_note = "minNodes + k x nodeIncrementStep"},
        elastic.allowed_num_nodes);
  visit({.name = "scaleUpSnoozeSeconds",
         .description = "Seconds to wait after a resize before growing again.",
         .minimum = 0,
         .maximum = kMaxSeconds},
        elastic.scale_up_snooze);
  visit({.name = "pendingTimeoutSeconds",
         .description = "Seconds that pods may be pending, or some of them be refused (a quota), "
                        "before the job runs with fewer nodes; counted from when those before them "
                        "have left their nodes.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        elastic.pending_timeout);
}

template <class V, Is<SparesSpec> S>
void visit_fields(V& visit, S& spares) {
  visit({.name = "count",
         .description = "Pods kept ready to take the place of a lost one, under restartStrategy "
                        "InPlace and with an agent.",
         .minimum = 0,
         .maximum = 64},
        spares.count);
  visit({.name = "mode",
         .description = "What a spare keeps ready: Warm, a pod whose agent waits for its order."},
        spares.mode);
}

template <class V, Is<RestartBudget> S>
void visit_fields(V& visit, S& budget) {
  visit({.name = "class", .description = "The kind of failure.", .need = Need::kRequired},
        budget.failure_class);
  visit({.name = "maxRestarts",
         .description = "Restarts allowed in the window; one more fails the job. Of more than 100 "
                        "in one window the restarts of the job's whole life count.",
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
         .description = "Longest wait, in seconds.",
         .minimum = 0,
         .maximum = kMaxSeconds},
        backoff.max);
}

template <class V, Is<OnExitCodes> S>
void visit_fields(V& visit, S& on) {
  visit({.name = "containerName",
         .description = "The container whose exit code counts when the trainer has failed; a "
                        "sidecar that has ended by then may be named, too.",
         .max_length = 63,
         .default_note = "the one that ended the pod"},
        on.container_name);
  visit({.name = "operator", .description = "Whether the code must be in the list or outside."},
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
  visit({.name = "status", .description = "True, False or Unknown.", .max_length = 7}, on.status);
}

template <class V, Is<FailureRule> S>
void visit_fields(V& visit, S& rule) {
  visit({.name = "name",
         .description = "Name of the rule; the reason becomes Rule_<name>.",
         .need = Need::kRequired,
         .max_length = 63},
        rule.name);
  visit({.name = "action",
         .description = "What is done about a pod that the rule matches: fail the job, restart it, "
                        "or restart it without counting that (Ignore).",
         .need = Need::kRequired},
        rule.action);
  visit({.name = "countTowardsMax",
         .description = "Whether the restart uses up the budget of its class."},
        rule.count_towards_max);
  visit({.name = "onExitCodes",
         .description = "Matches by exit code; excludes onPodConditions.",
         .default_note = "none"},
        rule.on_exit_codes);
  visit({.name = "onPodConditions",
         .description = "Matches when one of these pod conditions holds; excludes onExitCodes.",
         .max_items = 20,
         .default_note = "none"},
        rule.on_pod_conditions);
}

template <class V, Is<FailurePolicy> S>
void visit_fields(V& visit, S& failure) {
  visit(
      {.name = "restartStrategy",
       .description = "What is replaced when a member fails: all pods, the pod that failed, or "
                      "only its processes. InPlace replaces a pod that is lost, or that has failed "
                      "three times within the window of a budget, which trainyard run does not; "
                      "without agents it replaces the pod that failed."},
      failure.restart_strategy);
  visit({.name = "budgets",
         .description = "Restarts allowed, one entry a class.",
         .max_items = 4,
         .default_note = "Application 10 and Infrastructure 30 and Hang 5 in 6 hours, Preemption "
                         "100 in a day"},
        failure.budgets);
  visit({.name = "backoff", .description = "The wait before a restart."}, failure.backoff);
  visit({.name = "rules",
         .description = "What to do about certain failures; the first that matches counts.",
         .max_items = 20,
         .default_note = "exit codes 64 and 65 fail the job, everything else restarts it"},
        failure.rules);
  visit({.name = "joinTimeoutSeconds",
         .description = "Seconds in which the agent of a pod that a restart keeps must have ended "
                        "its old processes and joined; otherwise the pod is replaced.",
         .minimum = 1,
         .maximum = 3600,
         .default_note = "10"},
        failure.join_timeout);
}

template <class V, Is<ProgressPolicy> S>
void visit_fields(V& visit, S& progress) {
  visit({.name = "startupTimeoutSeconds",
         .description = "Seconds until the first step must be done.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.startup_timeout);
  visit({.name = "minStallSeconds",
         .description = "Fewest seconds without a step that count as a stall.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.min_stall);
  visit({.name = "maxStallSeconds",
         .description = "Seconds without a step that always count as a stall.",
         .minimum = 1,
         .maximum = kMaxSeconds},
        progress.max_stall);
  visit({.name = "stallFactor",
         .description = "A stall is this many times the 99th percentile of the step time, within "
                        "the two bounds.",
         .minimum = 2,
         .maximum = 100000},
        progress.stall_factor);
  visit({.name = "onStall",
         .description =
             "What is done about a stall: it is reported, the ranks' stacks are printed, "
             "all pods are replaced, all processes are started again in their pods, or "
             "the pod of the rank to blame is replaced, with ReplaceNode on another node."},
        progress.on_stall);
}

template <class V, Is<PersistentVolumeClaim> S>
void visit_fields(V& visit, S& claim) {
  visit({.name = "claimName",
         .description = "Name of the claim, in the job's namespace; a local run keeps it in the "
                        "folder pvc/<claim> of its run directory.",
         .need = Need::kRequired,
         .max_length = 253},
        claim.claim_name);
}

template <class V, Is<CheckpointStorage> S>
void visit_fields(V& visit, S& storage) {
  visit({.name = "persistentVolumeClaim",
         .description = "A volume that all pods share (ReadWriteMany).",
         .need = Need::kRequired},
        storage.persistent_volume_claim);
}

template <class V, Is<CheckpointPolicy> S>
void visit_fields(V& visit, S& checkpoint) {
  visit({.name = "storage",
         .description = "Where checkpoints are kept. In a cluster there are none without it: every "
                        "restart begins anew.",
         .default_note = "the run directory of a local run"},
        checkpoint.storage);
  visit({.name = "path",
         .description = "Folder below the storage, relative.",
         .default_note = "the job's name"},
        checkpoint.path);
  visit({.name = "everySteps",
         .description = "Steps between checkpoints; 0 means only when stopped and at the end.",
         .minimum = 0,
         .maximum = kMaxCount},
        checkpoint.every_steps);
  visit({.name = "keepLast",
         .description = "Newest checkpoints kept.",
         .minimum = 1,
         .maximum = 10000},
        checkpoint.keep_last);
  visit(
      {.name = "memoryEverySteps",
       .description = "Steps between copies of the state in memory, from which ranks resume after "
                      "a restart in place; 0: none. Needs restartStrategy InPlace.",
       .minimum = 0,
       .maximum = kMaxCount,
       .default_note = "with restartStrategy InPlace such that copying costs at most 1 % of the "
                       "time of a step, otherwise 0"},
      checkpoint.memory_every_steps);
  visit({.name = "memoryReplicas",
         .description = "Copies of a rank's state in memory that the next node keeps, so that a "
                        "lost pod resumes from memory as well: 0 or 1. Needs restartStrategy "
                        "InPlace, an engine and two nodes.",
         .minimum = 0,
         .maximum = 1,
         .unwritten_zero = true},
        checkpoint.memory_replicas);
  visit({.name = "preemptionCheckpointSeconds",
         .description = "Seconds that ranks have when the job is told to stop: for the step under "
                        "way, a checkpoint that is being written, and the last one.",
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
         .description = "How many of them must succeed.",
         .minimum = 1,
         .maximum = 65536,
         .default_note = "all of them"},
        rule.succeeded_count);
}

template <class V, Is<SuccessPolicy> S>
void visit_fields(V& visit, S& success) {
  visit({.name = "rules",
         .description = "The job is complete when one of these holds.",
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
  visit({.name = "provider", .description = "Who places the pods of a job together."},
        scheduling.provider);
  visit({.name = "queue", .description = "Queue of the provider.", .max_length = 253},
        scheduling.queue);
  visit({.name = "schedulerName",
         .description = "Scheduler of the pods.",
         .max_length = 253,
         .default_note = "the provider's, else the cluster's"},
        scheduling.scheduler_name);
  visit({.name = "topology",
         .description = "Domains to keep the pods in, widest first.",
         .max_items = 8,
         .planned = true},
        scheduling.topology);
  visit({.name = "priorityClassName", .description = "Priority of the pods.", .max_length = 253},
        scheduling.priority_class_name);
}

template <class V, Is<RendezvousSpec> S>
void visit_fields(V& visit, S& rendezvous) {
  visit({.name = "port",
         .description = "TCP port of MASTER_PORT, for images that are not ours.",
         .minimum = 1,
         .maximum = 65535},
        rendezvous.port);
}

template <class V, Is<TrainingJobSpec> S>
void visit_fields(V& visit, S& spec) {
  visit({.name = "suspend", .description = "Stop the job's pods, after a checkpoint, and keep it."},
        spec.suspend);
  visit({.name = "managedBy",
         .description = "Controller that acts on the job; ours ignores jobs of another.",
         .max_length = 253,
         .default_note = "trainyard.dev/trainingjob-controller"},
        spec.managed_by);
  visit({.name = "activeDeadlineSeconds",
         .description = "Seconds after its start at which a job that is not done fails; counted "
                        "anew after a suspension.",
         .minimum = 1,
         .maximum = kMaxSeconds,
         .default_note = "none"},
        spec.active_deadline);
  visit({.name = "ttlSecondsAfterFinished",
         .description = "Seconds after its end at which the job is deleted.",
         .minimum = 0,
         .maximum = kMaxSeconds,
         .default_note = "kept"},
        spec.ttl_after_finished);
  visit({.name = "numNodes",
         .description = "Pods of the job; the most of them with elasticPolicy.",
         .minimum = 1,
         .maximum = kMaxNumNodes},
        spec.num_nodes);
  visit({.name = "numProcPerNode",
         .description =
             "Ranks of a pod, or auto: as many as the GPUs (nvidia.com/gpu) that container trainer "
             "has in resources.limits, at least 1.",
         .minimum = 1,
         .maximum = kMaxProcPerNode,
         .zero_word = "auto"},
        spec.num_proc_per_node);
  visit({.name = "template",
         .description = "The pods, a PodTemplateSpec; the container `trainer` does the work.",
         .default_note = "with engine, the built-in worker image"},
        spec.pod_template);
  visit({.name = "agent",
         .description = "Whether trainyard-agent supervises the processes of a pod."},
        spec.agent);
  visit({.name = "engine",
         .description = "A run of the built-in engine.",
         .default_note = "the template's own program"},
        spec.engine);
  visit({.name = "elasticPolicy",
         .description = "Sizes that the job may run at.",
         .default_note = "numNodes only"},
        spec.elastic_policy);
  visit({.name = "spares", .description = "Pods kept ready for replacement."}, spec.spares);
  visit({.name = "failurePolicy", .description = "What is done about failures."},
        spec.failure_policy);
  visit({.name = "progressPolicy", .description = "What is done about a job that stands still."},
        spec.progress_policy);
  visit({.name = "checkpointPolicy", .description = "When and where checkpoints are made."},
        spec.checkpoint_policy);
  visit({.name = "successPolicy", .description = "When the job is complete."}, spec.success_policy);
  visit({.name = "scheduling", .description = "How pods are placed."}, spec.scheduling);
  visit({.name = "rendezvous", .description = "How processes of foreign images meet."},
        spec.rendezvous);
  visit({.name = "keepFailedPods",
         .description = "Failed pods kept for their logs: the one to blame first, then the newest.",
         .minimum = 0,
         .maximum = 100},
        spec.keep_failed_pods);
}

template <class V, Is<TrainingJob> S>
void visit_fields(V& visit, S& job) {
  visit.constant({.name = "apiVersion", .description = "The version of this API."}, kApiVersion);
  visit.constant({.name = "kind", .description = "The kind of object."}, kKind);
  visit({.name = "metadata", .description = "Name and labels.", .need = Need::kRequired},
        job.metadata);
  visit({.name = "spec", .description = "What is wanted.", .need = Need::kRequired}, job.spec);
  visit({.name = "status", .description = "What is; written by the controller."}, job.status);
}

}  // namespace trainyard::api
