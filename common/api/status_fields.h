#pragma once

#include "common/api/field.h"
#include "common/api/training_job.h"

/// The field tables of TrainingJob's status; see field.h.
namespace trainyard::api {

template <class V, Is<Condition> S>
void visit_fields(V& visit, S& condition) {
  visit({.name = "type", .description = "What the condition is about.", .need = Need::kRequired},
        condition.type);
  visit({.name = "status", .description = "Whether it holds.", .need = Need::kRequired},
        condition.status);
  visit({.name = "observedGeneration", .description = "Version of the spec that it is about."},
        condition.observed_generation);
  visit({.name = "lastTransitionTime", .description = "When its status changed last."},
        condition.last_transition_time);
  visit({.name = "reason", .description = "Why, in one word for programs."}, condition.reason);
  visit({.name = "message", .description = "Why, for people; at most 1,024 bytes."},
        condition.message);
}

template <class V, Is<NodeCounts> S>
void visit_fields(V& visit, S& nodes) {
  visit({.name = "target", .description = "Nodes the job is to run at now."}, nodes.target);
  visit({.name = "active", .description = "Pods neither condemned nor finished."}, nodes.active);
  visit({.name = "ready",
         .description = "Pods that are ready and whose ranks have not failed. A pod that a restart "
                        "keeps counts again when all ranks of the job have met."},
        nodes.ready);
  visit({.name = "succeeded", .description = "Nodes that have ended well."}, nodes.succeeded);
  visit({.name = "failed",
         .description = "Pods that failed and are still there; status.restarts counts over the "
                        "job's life."},
        nodes.failed);
  visit({.name = "condemned", .description = "Pods being deleted."}, nodes.condemned);
  visit({.name = "spare", .description = "Pods kept ready outside the membership."}, nodes.spare);
}

template <class V, Is<RoleStatus> S>
void visit_fields(V& visit, S& role) {
  visit({.name = "name", .description = "Name of the role.", .need = Need::kRequired}, role.name);
  visit({.name = "target", .description = "Pods it is to have."}, role.target);
  visit({.name = "ready", .description = "Pods of it that are ready."}, role.ready);
}

template <class V, Is<Promotion> S>
void visit_fields(V& visit, S& promotion) {
  visit({.name = "index", .description = "The node index that it has.", .need = Need::kRequired},
        promotion.index);
  visit({.name = "podUID", .description = "The pod's unique id.", .need = Need::kRequired},
        promotion.pod_uid);
}

template <class V, Is<Membership> S>
void visit_fields(V& visit, S& membership) {
  visit({.name = "generation",
         .description = "Number of the present membership; every restart and resize adds one."},
        membership.generation);
  visit({.name = "reservedUpTo",
         .description = "Generations up to this one may be used without another write."},
        membership.reserved_up_to);
  visit({.name = "podsSince",
         .description = "Generation whose pods are the oldest that may belong to the present one; "
                        "lower than it where a restart has kept pods."},
        membership.pods_since);
  visit({.name = "worldSize", .description = "Ranks of the generation."}, membership.world_size);
  visit({.name = "layout",
         .description = "How the engine's ranks divide the work: axes longer than 1, and what the "
                        "ranks of `shard` share out. Names the shard asked for where the ranks "
                        "have another."},
        membership.layout);
  visit({.name = "master", .description = "Host name of the first node."}, membership.master);
  visit({.name = "configuration",
         .description = "Hash of what of the spec the generation's pods are made from."},
        membership.configuration);
  visit({.name = "promoted",
         .description = "Members whose pods were made as spares.",
         .max_items = kMaxPromoted},
        membership.promoted);
}

template <class V, Is<ClassRestarts> S>
void visit_fields(V& visit, S& restarts) {
  visit({.name = "class", .description = "The kind of failure.", .need = Need::kRequired},
        restarts.failure_class);
  visit({.name = "total", .description = "Restarts over the job's life."}, restarts.total);
  visit({.name = "recent",
         .description = "Times of the newest restarts, oldest first.",
         .max_items = kMaxRecentRestarts},
        restarts.recent);
}

template <class V, Is<RestartCounts> S>
void visit_fields(V& visit, S& restarts) {
  visit({.name = "total", .description = "Restarts over the job's life, all classes."},
        restarts.total);
  visit({.name = "classes", .description = "Restarts by class.", .max_items = 4}, restarts.classes);
  visit({.name = "inPlace", .description = "Restarts that kept every pod."}, restarts.in_place);
  visit({.name = "podReplacements", .description = "Restarts that replaced single pods."},
        restarts.pod_replacements);
  visit({.name = "promotions", .description = "Spares that have taken the index of a lost pod."},
        restarts.promotions);
  visit({.name = "resizes",
         .description = "Changes of the number of nodes, and gangs begun anew as the spec was "
                        "edited before all of their pods were made."},
        restarts.resizes);
}

template <class V, Is<Attempt> S>
void visit_fields(V& visit, S& attempt) {
  visit({.name = "generation", .description = "The membership's number."}, attempt.generation);
  visit({.name = "class", .description = "The kind of failure that ended it."},
        attempt.failure_class);
  visit({.name = "reason", .description = "Why it ended, in one word."}, attempt.reason);
  visit({.name = "podName", .description = "The pod that failed first."}, attempt.pod_name);
  visit({.name = "podUID", .description = "That pod's unique id."}, attempt.pod_uid);
  visit({.name = "container", .description = "The container that failed."}, attempt.container);
  visit({.name = "node", .description = "The node it ran on."}, attempt.node);
  visit({.name = "rank", .description = "The rank that failed."}, attempt.rank);
  visit({.name = "exitCode", .description = "Its exit code."}, attempt.exit_code);
  visit({.name = "signal", .description = "The signal that ended it."}, attempt.signal);
  visit(
      {.name = "message",
       .description = "Its last words; at most 1 KiB in the newest attempt, 160 bytes in others."},
      attempt.message);
  visit({.name = "startTime", .description = "When the generation began."}, attempt.start_time);
  visit({.name = "endTime", .description = "When it ended."}, attempt.end_time);
  visit({.name = "startStep", .description = "Steps done before it; 0 for a fresh start."},
        attempt.start_step);
  visit({.name = "endStep", .description = "The last step it did."}, attempt.end_step);
  visit({.name = "resumedFromStep",
         .description = "The step that the generation after it went on from."},
        attempt.resumed_from_step);
  visit({.name = "lostSteps", .description = "Steps done that the next one has to do again."},
        attempt.lost_steps);
  visit({.name = "requested",
         .description = "Of a change of size: whether an edit of the spec asked for it."},
        attempt.requested);
  visit({.name = "inPlace",
         .description = "Whether its pod went on: only processes were started again."},
        attempt.in_place);
}

template <class V, Is<ProgressStatus> S>
void visit_fields(V& visit, S& progress) {
  visit({.name = "step", .description = "Optimizer steps done."}, progress.step);
  visit({.name = "totalSteps", .description = "Optimizer steps of the whole run."},
        progress.total_steps);
  visit({.name = "percentage", .description = "Part done, in percent."}, progress.percentage);
  visit({.name = "etaSeconds", .description = "Seconds to go at the present rate."},
        progress.eta_s);
  visit({.name = "loss",
         .description = "Mean loss of the newest step, in nats a token.",
         .notation = Notation::kDecimalText},
        progress.loss);
  visit({.name = "tokensPerSecond",
         .description = "Tokens a second, all ranks.",
         .notation = Notation::kDecimalText},
        progress.tokens_per_second);
  visit({.name = "stepTimeMillis",
         .description = "Milliseconds of a step.",
         .notation = Notation::kDecimalText},
        progress.step_time_ms);
  visit({.name = "slowestRank", .description = "The rank the others wait for."},
        progress.slowest_rank);
  visit({.name = "phase",
         .description = "What the ranks are doing; BackOff: they wait after a failure."},
        progress.phase);
  visit({.name = "lastStepTime", .description = "When the newest step was done."},
        progress.last_step_time);
}

template <class V, Is<CheckpointStatus> S>
void visit_fields(V& visit, S& checkpoint) {
  visit({.name = "lastStep", .description = "Step of the newest committed checkpoint."},
        checkpoint.last_step);
  visit({.name = "uri", .description = "Where it is."}, checkpoint.uri);
  visit({.name = "digest", .description = "Hash of its manifest."}, checkpoint.digest);
  visit({.name = "lastTime", .description = "When it was committed."}, checkpoint.last_time);
}

template <class V, Is<Badput> S>
void visit_fields(V& visit, S& badput) {
  visit({.name = "queue", .description = "Seconds waiting to be placed."}, badput.queue);
  visit({.name = "startup",
         .description = "Seconds starting processes, and ending them once they "
                        "had done what was asked of them."},
        badput.startup);
  visit({.name = "rendezvous", .description = "Seconds until ranks had met."}, badput.rendezvous);
  visit({.name = "restore", .description = "Seconds preparing and reading the model's state."},
        badput.restore);
  visit({.name = "checkpoint", .description = "Seconds that training waited for checkpoints."},
        badput.checkpoint);
  visit({.name = "recompute", .description = "Seconds of steps done again."}, badput.recompute);
  visit({.name = "stall", .description = "Seconds without progress."}, badput.stall);
  visit(
      {.name = "infra",
       .description = "Seconds lost to failures: the step cut short, detection, back-off, removal "
                      "and creation of pods."},
      badput.infra);
}

template <class V, Is<GoodputMark> S>
void visit_fields(V& visit, S& mark) {
  visit({.name = "time", .description = "Until when all time is counted."}, mark.time);
  visit({.name = "step", .description = "Steps done at that time."}, mark.step);
  visit({.name = "reachedStep",
         .description = "The highest step ever done; steps below it are done again."},
        mark.reached_step);
}

template <class V, Is<GoodputStatus> S>
void visit_fields(V& visit, S& goodput) {
  visit({.name = "wallSeconds",
         .description = "Seconds since the start, suspensions left out; productive and badput "
                        "seconds add up to it to the millisecond."},
        goodput.wall);
  visit({.name = "productiveSeconds", .description = "Seconds that advanced the model."},
        goodput.productive);
  visit({.name = "ratio",
         .description = "Productive by wall seconds.",
         .notation = Notation::kDecimalText},
        goodput.ratio);
  visit({.name = "badputSeconds", .description = "The other seconds by cause."}, goodput.badput);
  visit({.name = "stoppedSeconds",
         .description = "Seconds suspended or stopped on request, which wallSeconds leaves out."},
        goodput.stopped);
  visit(
      {.name = "lostSteps", .description = "Steps that failures have undone, over the job's life."},
      goodput.lost_steps);
  visit({.name = "counted", .description = "How far the ledger has counted."}, goodput.counted);
}

template <class V, Is<SparesStatus> S>
void visit_fields(V& visit, S& spares) {
  visit({.name = "made", .description = "Spares made over the job's life; numbers the newest."},
        spares.made);
  visit({.name = "parked",
         .description = "Numbers of the spares that stand ready or are made.",
         .max_items = 64},
        spares.parked);
  visit({.name = "lastMadeTime", .description = "When the newest was asked for."},
        spares.last_made_time);
}

template <class V, Is<AvoidedNode> S>
void visit_fields(V& visit, S& node) {
  visit({.name = "name", .description = "The node's name.", .need = Need::kRequired}, node.name);
  visit({.name = "until",
         .description = "Until when new pods go to other nodes, as far as there are any."},
        node.until);
  visit({.name = "times", .description = "How often it was avoided: each time for twice as long."},
        node.times);
}

template <class V, Is<TrainingJobStatus> S>
void visit_fields(V& visit, S& status) {
  visit({.name = "observedGeneration", .description = "Version of the spec that was acted on."},
        status.observed_generation);
  visit({.name = "phase", .description = "The conditions in one word, for people."}, status.phase);
  visit({.name = "startTime", .description = "When the job was first acted on."},
        status.start_time);
  visit({.name = "completionTime", .description = "When the job was over, complete or failed."},
        status.completion_time);
  visit({.name = "lastResumeTime", .description = "When it was last taken out of suspension."},
        status.last_resume_time);
  visit({.name = "selector", .description = "Label selector of the job's pods."}, status.selector);
  visit({.name = "nodes", .description = "Counts of pods."}, status.nodes);
  visit({.name = "roles", .description = "Counts of pods by role.", .max_items = 16}, status.roles);
  visit({.name = "membership", .description = "The present generation of members."},
        status.membership);
  visit({.name = "completedIndexes",
         .description = "Node indexes of the present generation that have ended well, for example "
                        "\"0-3,7\": they stay so when their pods are deleted.",
         .max_length = kMaxCompletedIndexes},
        status.completed_indexes);
  visit({.name = "spares", .description = "Pods that stand ready to replace a lost one."},
        status.spares);
  visit({.name = "avoidedNodes",
         .description = "Nodes on which the job has failed again and again.",
         .max_items = kMaxAvoidedNodes},
        status.avoided_nodes);
  visit({.name = "restarts", .description = "Counts of restarts."}, status.restarts);
  visit({.name = "attempts",
         .description = "The last generations, oldest first.",
         .max_items = kMaxAttempts},
        status.attempts);
  visit({.name = "progress", .description = "How far training is."}, status.progress);
  visit({.name = "checkpoint", .description = "The newest committed checkpoint."},
        status.checkpoint);
  visit({.name = "goodput", .description = "Where the time went."}, status.goodput);
  visit({.name = "conditions", .description = "What holds, by type.", .max_items = 16},
        status.conditions);
}

}  // namespace trainyard::api
