#pragma once

#include "common/api/field.h"
#include "common/api/training_job.h"

/// The field tables of TrainingJob's status; see field.h.
namespace trainyard::api {

template <class V, Is<Condition> S>
void visit_fields(V& visit, S& condition) {
  visit({.name = "type", .description = "Type of the condition.", .need = Need::kRequired},
        condition.type);
  visit({.name = "status", .description = "Whether the condition holds.", .need = Need::kRequired},
        condition.status);
  visit({.name = "observedGeneration",
         .description = "Version of the spec that the condition describes."},
        condition.observed_generation);
  visit({.name = "lastTransitionTime", .description = "Time at which the status last changed."},
        condition.last_transition_time);
  visit({.name = "reason", .description = "Reason of the status in one word, for programs."},
        condition.reason);
  visit({.name = "message",
         .description = "Explanation of the status, for people; at most 1,024 bytes."},
        condition.message);
}

template <class V, Is<NodeCounts> S>
void visit_fields(V& visit, S& nodes) {
  visit({.name = "target", .description = "Number of nodes at which the job is to run now."},
        nodes.target);
  visit({.name = "active", .description = "Pods that are neither being deleted nor finished."},
        nodes.active);
  visit({.name = "ready",
         .description = "Pods that are ready and whose ranks have not failed. A pod that a restart "
                        "keeps counts again once all ranks of the job have met."},
        nodes.ready);
  visit({.name = "succeeded", .description = "Nodes that have succeeded."}, nodes.succeeded);
  visit(
      {.name = "failed",
       .description = "Failed pods that still exist; status.restarts counts over the job's life."},
      nodes.failed);
  visit({.name = "condemned", .description = "Pods being deleted."}, nodes.condemned);
  visit({.name = "spare", .description = "Pods kept ready outside the membership."}, nodes.spare);
}

template <class V, Is<RoleStatus> S>
void visit_fields(V& visit, S& role) {
  visit({.name = "name", .description = "Name of the role.", .need = Need::kRequired}, role.name);
  visit({.name = "target", .description = "Number of pods that the role is to have."}, role.target);
  visit({.name = "ready", .description = "Pods of the role that are ready."}, role.ready);
}

template <class V, Is<Promotion> S>
void visit_fields(V& visit, S& promotion) {
  visit({.name = "index", .description = "Node index of the pod.", .need = Need::kRequired},
        promotion.index);
  visit({.name = "podUID", .description = "Unique id of the pod.", .need = Need::kRequired},
        promotion.pod_uid);
}

template <class V, Is<Membership> S>
void visit_fields(V& visit, S& membership) {
  visit({.name = "generation",
         .description = "Number of the current membership; every restart and resize adds one."},
        membership.generation);
  visit({.name = "reservedUpTo",
         .description = "Highest generation that may be used without another write of the status."},
        membership.reserved_up_to);
  visit({.name = "podsSince",
         .description = "Oldest generation whose pods may belong to the current one; lower than "
                        "the current one if a restart has kept pods."},
        membership.pods_since);
  visit({.name = "worldSize", .description = "Number of ranks of the generation."},
        membership.world_size);
  visit(
      {.name = "layout",
       .description =
           "Division of the work among the engine's ranks: axes longer than 1, and the states that "
           "the ranks of `shard` divide. Shows the requested shard if the ranks use another."},
      membership.layout);
  visit({.name = "master", .description = "Host name of the first node."}, membership.master);
  visit({.name = "configuration",
         .description =
             "Hash of the parts of the spec from which the generation's pods are created."},
        membership.configuration);
  visit({.name = "workerImage",
         .description = "Image of Trainyard in the generation's pods: that of the trainer if the "
                        "template names none, or the one that provides the agent. Pods that are "
                        "replaced one by one get it, too."},
        membership.worker_image);
  visit({.name = "promoted",
         .description = "Members whose pods were created as spares.",
         .max_items = kMaxPromoted},
        membership.promoted);
}

template <class V, Is<ClassRestarts> S>
void visit_fields(V& visit, S& restarts) {
  visit({.name = "class", .description = "Kind of failure.", .need = Need::kRequired},
        restarts.failure_class);
  visit({.name = "total", .description = "Restarts over the job's life."}, restarts.total);
  visit({.name = "recent",
         .description = "Times of the newest restarts, oldest first.",
         .max_items = kMaxRecentRestarts},
        restarts.recent);
}

template <class V, Is<RestartCounts> S>
void visit_fields(V& visit, S& restarts) {
  visit({.name = "total", .description = "Restarts over the job's life, in all classes."},
        restarts.total);
  visit({.name = "classes", .description = "Restarts by class.", .max_items = 8}, restarts.classes);
  visit({.name = "inPlace", .description = "Restarts that kept every pod."}, restarts.in_place);
  visit({.name = "podReplacements", .description = "Restarts that replaced single pods."},
        restarts.pod_replacements);
  visit({.name = "promotions", .description = "Spares that have taken the index of a lost pod."},
        restarts.promotions);
  visit({.name = "resizes",
         .description = "Changes of the number of nodes, and gangs started again because the spec "
                        "was edited before all of their pods were created."},
        restarts.resizes);
}

template <class V, Is<Attempt> S>
void visit_fields(V& visit, S& attempt) {
  visit({.name = "generation", .description = "Number of the membership."}, attempt.generation);
  visit({.name = "class", .description = "Kind of failure that ended the attempt."},
        attempt.failure_class);
  visit({.name = "reason", .description = "Reason for which the attempt ended, in one word."},
        attempt.reason);
  visit({.name = "podName", .description = "Name of the pod that failed first."}, attempt.pod_name);
  visit({.name = "podUID", .description = "Unique id of the pod that failed first."},
        attempt.pod_uid);
  visit({.name = "container", .description = "Container that failed."}, attempt.container);
  visit({.name = "node", .description = "Node on which the pod ran."}, attempt.node);
  visit({.name = "rank", .description = "Rank that failed."}, attempt.rank);
  visit({.name = "exitCode", .description = "Exit code of the process that failed."},
        attempt.exit_code);
  visit({.name = "signal", .description = "Signal that ended the process that failed."},
        attempt.signal);
  visit(
      {.name = "message",
       .description =
           "Message about the failure; at most 1 KiB in the newest attempt, 160 bytes in others."},
      attempt.message);
  visit({.name = "startTime", .description = "Time at which the generation started."},
        attempt.start_time);
  visit({.name = "endTime", .description = "Time at which the generation ended."},
        attempt.end_time);
  visit({.name = "startStep",
         .description = "Steps completed before the generation; 0 for a fresh start."},
        attempt.start_step);
  visit({.name = "endStep", .description = "Last step that the generation completed."},
        attempt.end_step);
  visit({.name = "resumedFromStep", .description = "Step from which the next generation resumed."},
        attempt.resumed_from_step);
  visit(
      {.name = "lostSteps", .description = "Completed steps that the next generation must repeat."},
      attempt.lost_steps);
  visit({.name = "requested",
         .description = "For a change of size: whether an edit of the spec requested it."},
        attempt.requested);
  visit({.name = "inPlace",
         .description = "Whether the pod was kept and only processes were restarted."},
        attempt.in_place);
}

template <class V, Is<ProgressStatus> S>
void visit_fields(V& visit, S& progress) {
  visit({.name = "step", .description = "Optimizer steps completed."}, progress.step);
  visit({.name = "totalSteps", .description = "Optimizer steps of the whole run."},
        progress.total_steps);
  visit({.name = "percentage", .description = "Completed part of the run, in percent."},
        progress.percentage);
  visit({.name = "etaSeconds", .description = "Remaining seconds at the current rate."},
        progress.eta_s);
  visit({.name = "loss",
         .description = "Mean loss of the newest step, in nats per token.",
         .notation = Notation::kDecimalText},
        progress.loss);
  visit({.name = "tokensPerSecond",
         .description = "Tokens per second over all ranks.",
         .notation = Notation::kDecimalText},
        progress.tokens_per_second);
  visit({.name = "stepTimeMillis",
         .description = "Milliseconds per step.",
         .notation = Notation::kDecimalText},
        progress.step_time_ms);
  visit({.name = "slowestRank", .description = "Rank for which the others wait."},
        progress.slowest_rank);
  visit({.name = "phase",
         .description = "Activity of the ranks; BackOff means that they wait after a failure."},
        progress.phase);
  visit({.name = "lastStepTime", .description = "Time at which the newest step was completed."},
        progress.last_step_time);
}

template <class V, Is<CheckpointStatus> S>
void visit_fields(V& visit, S& checkpoint) {
  visit({.name = "lastStep", .description = "Step of the newest committed checkpoint."},
        checkpoint.last_step);
  visit({.name = "uri", .description = "Location of the checkpoint."}, checkpoint.uri);
  visit({.name = "digest", .description = "Hash of the checkpoint's manifest."}, checkpoint.digest);
  visit({.name = "lastTime", .description = "Time at which the checkpoint was committed."},
        checkpoint.last_time);
}

template <class V, Is<Badput> S>
void visit_fields(V& visit, S& badput) {
  visit({.name = "queue", .description = "Seconds waiting for placement."}, badput.queue);
  visit({.name = "startup",
         .description = "Seconds starting processes, and stopping them once their work was done."},
        badput.startup);
  visit({.name = "rendezvous", .description = "Seconds until the ranks had met."},
        badput.rendezvous);
  visit({.name = "restore", .description = "Seconds preparing and reading the model's state."},
        badput.restore);
  visit({.name = "checkpoint", .description = "Seconds that training waited for checkpoints."},
        badput.checkpoint);
  visit({.name = "recompute", .description = "Seconds spent on repeated steps."}, badput.recompute);
  visit({.name = "stall", .description = "Seconds without progress."}, badput.stall);
  visit({.name = "infra",
         .description = "Seconds lost to failures: the interrupted step, detection, back-off, "
                        "deletion and creation of pods."},
        badput.infra);
}

template <class V, Is<GoodputMark> S>
void visit_fields(V& visit, S& mark) {
  visit({.name = "time", .description = "Time up to which all time is counted."}, mark.time);
  visit({.name = "step", .description = "Steps completed at that time."}, mark.step);
  visit({.name = "reachedStep",
         .description = "Highest step ever completed; steps below it are repeated steps."},
        mark.reached_step);
}

template <class V, Is<GoodputStatus> S>
void visit_fields(V& visit, S& goodput) {
  visit({.name = "wallSeconds",
         .description = "Seconds since the start without suspensions; productive and badput "
                        "seconds add up to it to the millisecond."},
        goodput.wall);
  visit({.name = "productiveSeconds", .description = "Seconds that advanced the model."},
        goodput.productive);
  visit({.name = "ratio",
         .description = "Productive seconds divided by wall seconds.",
         .notation = Notation::kDecimalText},
        goodput.ratio);
  visit({.name = "badputSeconds", .description = "Other seconds, by cause."}, goodput.badput);
  visit({.name = "stoppedSeconds",
         .description = "Seconds suspended or stopped on request; wallSeconds excludes them."},
        goodput.stopped);
  visit(
      {.name = "lostSteps", .description = "Steps that failures have undone, over the job's life."},
      goodput.lost_steps);
  visit({.name = "counted", .description = "Position up to which the ledger has counted."},
        goodput.counted);
}

template <class V, Is<SparesStatus> S>
void visit_fields(V& visit, S& spares) {
  visit({.name = "made",
         .description = "Spares created over the job's life; the number of the newest spare."},
        spares.made);
  visit({.name = "parked",
         .description = "Numbers of the spares that are ready or being created.",
         .max_items = 64},
        spares.parked);
  visit({.name = "lastMadeTime", .description = "Time at which the newest spare was requested."},
        spares.last_made_time);
}

template <class V, Is<AvoidedNode> S>
void visit_fields(V& visit, S& node) {
  visit({.name = "name", .description = "Name of the node.", .need = Need::kRequired}, node.name);
  visit(
      {.name = "until",
       .description = "Time until which new pods go to other nodes, if other nodes are available."},
      node.until);
  visit({.name = "times",
         .description = "Number of times that the node was avoided, each time for twice as long."},
        node.times);
}

template <class V, Is<TrainingJobStatus> S>
void visit_fields(V& visit, S& status) {
  visit({.name = "observedGeneration",
         .description = "Version of the spec on which the controller has acted."},
        status.observed_generation);
  visit({.name = "phase",
         .description = "Summary of the conditions in one word, for people.",
         .is_open = true},
        status.phase);
  visit({.name = "reason", .description = "Reason of the condition that decides the phase."},
        status.reason);
  visit({.name = "message", .description = "Message of that condition, shortened."},
        status.message);
  visit(
      {.name = "startTime", .description = "Time at which the controller first acted on the job."},
      status.start_time);
  visit({.name = "completionTime", .description = "Time at which the job completed or failed."},
        status.completion_time);
  visit({.name = "lastResumeTime", .description = "Time at which the job last left suspension."},
        status.last_resume_time);
  visit({.name = "selector", .description = "Label selector of the job's pods."}, status.selector);
  visit({.name = "nodes", .description = "Counts of pods."}, status.nodes);
  visit({.name = "roles", .description = "Counts of pods by role.", .max_items = 16}, status.roles);
  visit({.name = "membership", .description = "Current generation of members."}, status.membership);
  visit({.name = "completedIndexes",
         .description = "Node indexes of the current generation that have succeeded, for example "
                        "\"0-3,7\"; they remain listed when their pods are deleted.",
         .max_length = kMaxCompletedIndexes},
        status.completed_indexes);
  visit({.name = "spares", .description = "Pods that are ready to replace a lost pod."},
        status.spares);
  visit({.name = "avoidedNodes",
         .description = "Nodes on which the job has failed repeatedly.",
         .max_items = kMaxAvoidedNodes},
        status.avoided_nodes);
  visit({.name = "restarts", .description = "Counts of restarts."}, status.restarts);
  visit({.name = "attempts",
         .description = "Last generations, oldest first.",
         .max_items = kMaxAttempts},
        status.attempts);
  visit({.name = "progress", .description = "Progress of training."}, status.progress);
  visit({.name = "checkpoint", .description = "Newest committed checkpoint."}, status.checkpoint);
  visit({.name = "goodput", .description = "Use of the job's time."}, status.goodput);
  visit({.name = "conditions", .description = "Conditions of the job, by type.", .max_items = 32},
        status.conditions);
}

}  // namespace trainyard::api
