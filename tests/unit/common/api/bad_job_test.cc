#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "tests/unit/common/api/bad_manifest.h"

namespace trainyard::api {
namespace {

// clang-format off
const BadManifest kBadJobs[] = {
    {1, R"(apiVersion: trainyard.dev/v1)",
     R"(1: apiVersion: found "trainyard.dev/v1", wanted trainyard.dev/v1alpha1)"},
    {1, R"()",
     R"(2: apiVersion: found nothing, wanted trainyard.dev/v1alpha1)"},
    {2, R"(kind: Job)",
     R"(2: kind: found "Job", wanted TrainingJob)"},
    {2, R"(kind: [TrainingJob])",
     R"(2: kind: found a list, wanted TrainingJob)"},
    {3, R"(metadata: {})",
     R"(3: metadata.name: found nothing, wanted a value: Name of the job: a lower-case letter, then lower-case letters, digits and '-', at most 57 characters; it becomes part of host names)"},
    {3, R"(metadata: {name: a, labels: {kueue.x-k8s.io/queue-name: team}})",
     R"(3: metadata.labels.kueue.x-k8s.io/queue-name: found "team", wanted no such label, because Kueue does not know TrainingJobs: the job would bypass the queue)"},
    {3, R"(metadata: {name: 1job})",
     R"(3: metadata.name: found "1job", wanted a lower-case letter, then at most 56 lower-case letters, digits and '-', no '-' at the end)"},
    {3, R"(metadata: {name: job-})",
     R"(3: metadata.name: found "job-", wanted a lower-case letter, then at most 56 lower-case letters, digits and '-', no '-' at the end)"},
    {3, R"(metadata: {name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa})",
     R"(3: metadata.name: found "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", wanted a lower-case letter, then at most 56 lower-case letters, digits and '-', no '-' at the end)"},
    {3, R"(metadata: {name: Job})",
     R"(3: metadata.name: found "Job", wanted a lower-case letter, then at most 56 lower-case letters, digits and '-', no '-' at the end)"},
    {3, R"(metadata: {name: job, namespace: Team_A})",
     R"(3: metadata.namespace: found "Team_A", wanted a lower-case name of at most 63 letters, digits and '-')"},
    {3, R"(metadata: {name: job, lables: {a: b}})",
     R"(3: metadata.lables: found an unknown key, wanted labels)"},
    {3, R"(metadata: {name: job, labels: {version: 1.10}})",
     R"(3: metadata.labels.version: found 1.10, wanted text: put it in quotes)"},
    {3, R"(metadata: {name: job, generation: -1})",
     R"(3: metadata.generation: found -1, wanted a number at least 0)"},
    {3, R"(metadata: {name: job, creationTimestamp: yesterday})",
     R"(3: metadata.creationTimestamp: found "yesterday", wanted a time such as 2026-01-31T12:00:00Z)"},
    {kAppend, R"(  suspend: yes)",
     R"(10: spec.suspend: found yes, wanted true or false)"},
    {kAppend, R"(  numNodes: yes)",
     R"(10: spec.numNodes: found yes, wanted a whole number)"},
    {kAppend, R"(  checkpointPolicy: {everySteps: On})",
     R"(10: spec.checkpointPolicy.everySteps: found On, wanted a whole number)"},
    {kAppend, R"(  elasticPolicy: off)",
     R"(10: spec.elasticPolicy: found off, wanted a mapping)"},
    {3, R"(metadata: {name: job, labels: {country: no}})",
     R"(3: metadata.labels.country: found no, wanted text: put it in quotes)"},
    {kAppend, R"(  suspend: "true")",
     R"(10: spec.suspend: found "true", wanted true or false)"},
    {kAppend, R"(  suspend: 1)",
     R"(10: spec.suspend: found 1, wanted true or false)"},
    {kAppend, R"(  numNodes: 0)",
     R"(10: spec.numNodes: found 0, wanted a number from 1 to 65536)"},
    {kAppend, R"(  numNodes: 010)",
     R"(10: spec.numNodes: found 010, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {kAppend, R"(  numNodes: 1_0)",
     R"(10: spec.numNodes: found 1_0, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {kAppend, R"(  numNodes: 1.0)",
     R"(10: spec.numNodes: found 1.0, wanted a whole number)"},
    {kAppend, R"(  numNodes: 0x10)",
     R"(10: spec.numNodes: found 0x10, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {kAppend, R"(  numNodes: 99999999999999999999)",
     R"(10: spec.numNodes: found 99999999999999999999, wanted a whole number from 1 to 65536)"},
    {kAppend, R"(  numNodes: two)",
     R"(10: spec.numNodes: found "two", wanted a whole number)"},
    {kAppend, R"(  numProcPerNode: 0)",
     R"(10: spec.numProcPerNode: found 0, wanted a whole number or auto, at least 1)"},
    {kAppend, R"(  numProcPerNode: all)",
     R"(10: spec.numProcPerNode: found "all", wanted a whole number or auto)"},
    {kAppend, R"(    parallelism: {shard: 4}
  numProcPerNode: auto)",
     R"(11: spec.numProcPerNode: found auto, counted as 1 here, wanted 4, for the ranks to be a multiple of shard 4)"},
    {kAppend, R"(    device: Cuda
  numProcPerNode: 2
  template: {spec: {containers: [{name: trainer, resources: {limits: {nvidia.com/gpu: 4}}}]}})",
     R"(12: spec.template.spec.containers: found 4 of nvidia.com/gpu in the trainer's resources.limits, wanted 2, one per rank (numProcPerNode))"},
    {kAppend, R"(    device: Auto
  numProcPerNode: 2
  template: {spec: {containers: [{name: trainer, resources: {limits: {nvidia.com/mig-1g.10gb: 2}}}]}})",
     R"(11: spec.numProcPerNode: found 2, wanted 1, as the trainer's resources.limits name nvidia.com/mig-1g.10gb, a part of a GPU: the ranks of a pod all see the same part; use one rank per pod and more nodes (numNodes))"},
    {kAppend, R"(    device: Cpu
  template: {spec: {containers: [{name: trainer, resources: {limits: {nvidia.com/gpu: 4}}}]}})",
     R"(11: spec.template.spec.containers: found 4 of nvidia.com/gpu in the trainer's resources.limits, wanted none, as engine.device is Cpu)"},
    {kAppend, R"(    parallelism: {shard: 4}
  numProcPerNode: 6)",
     R"(11: spec.numProcPerNode: found 6, wanted 4 or 8, for the ranks to be a multiple of shard 4)"},
    {kAppend, R"(    parallelism: {zeroStage: 3, shard: 4})",
     R"(4: spec.numProcPerNode: found 1, wanted 4, for the ranks to be a multiple of shard 4)"},
    {kAppend, R"(    parallelism: {shard: 4}
  numNodes: 3
  numProcPerNode: 2)",
     R"(11: spec.numNodes: found 3 (6 ranks), wanted 2 or 4, for the ranks to be a multiple of shard 4)"},
    {kAppend, R"(    parallelism: {tensor: 2}
  numNodes: 2
  numProcPerNode: 3)",
     R"(12: spec.numProcPerNode: found 3, wanted 2 or 4, a multiple of engine.parallelism.tensor (2), so that ranks that share every layer are on one node)"},
    {kAppend, R"(    parallelism: {shard: 1500}
  numProcPerNode: 4)",
     R"(4: spec.numNodes: found 1 (4 ranks), wanted 375, for the ranks to be a multiple of shard 1500)"},
    {kAppend, R"(  numProcPerNode: 9)",
     R"(8: spec.engine.batch.globalSequences: found 8, wanted at least 1 sequence for each of the 9 data-parallel ranks)"},
    {kAppend, R"(    parallelism: {pipeline: 3, pipelineSchedule: Interleaved, chunksPerStage: 2}
  numProcPerNode: 3)",
     R"(8: spec.engine.batch.globalSequences: found 8 in 8 micro-batches per data-parallel rank, wanted a multiple of pipeline (3) micro-batches under Interleaved: set batch.globalSequences to 6 or 9, or change batch.microSequences)"},
    {kAppend, R"(    parallelism: {pipeline: 3, pipelineSchedule: Interleaved, chunksPerStage: 2}
  numProcPerNode: 12)",
     R"(8: spec.engine.batch.globalSequences: found 8 in 2 micro-batches per data-parallel rank, wanted a multiple of pipeline (3) micro-batches under Interleaved: set batch.globalSequences to 9, or change batch.microSequences)"},
    {kAppend, R"(    parallelism: {pipeline: 2, pipelineSchedule: Interleaved, chunksPerStage: 2})",
     R"(4: spec.numProcPerNode: found 1, wanted 2, for the ranks to be a multiple of pipeline 2)"},
    {kAppend, R"(    runtime: {transport: Local}
  numProcPerNode: 2)",
     R"(10: spec.engine.runtime.transport: found Local, wanted Auto, Shm or Tcp, as the 2 ranks are separate processes)"},
    {kAppend, R"(    runtime: {transport: Nccl}
    device: Cuda)",
     R"(10: spec.engine.runtime.transport: found Nccl, wanted Auto with one rank, which has no peers; or a larger numNodes or numProcPerNode)"},
    {kAppend, R"(  numNode: 2)",
     R"(10: spec.numNode: found an unknown key, wanted numNodes)"},
    {kAppend, R"(  NumNodes: 2)",
     R"(10: spec.NumNodes: found an unknown key, wanted numNodes)"},
    {kAppend, R"(  replicas: 2)",
     R"(10: spec.replicas: found an unknown key, wanted suspend, managedBy, activeDeadlineSeconds, ttlSecondsAfterFinished, numNodes, numProcPerNode, template, agent, engine, elasticPolicy, spares, failurePolicy, progressPolicy, checkpointPolicy, successPolicy, scheduling, rendezvous or keepFailedPods)"},
    {kAppend, R"(  activeDeadlineSeconds: 0)",
     R"(10: spec.activeDeadlineSeconds: found 0, wanted a number from 1 to 315360000)"},
    {kAppend, R"(  activeDeadlineSeconds: 1h)",
     R"(10: spec.activeDeadlineSeconds: found "1h", wanted a whole number)"},
    {kAppend, R"(  activeDeadlineSeconds: 1:30:00)",
     R"(10: spec.activeDeadlineSeconds: found 1:30:00, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {kAppend, R"(  ttlSecondsAfterFinished: -1)",
     R"(10: spec.ttlSecondsAfterFinished: found -1, wanted a number from 0 to 315360000)"},
    {kAppend, R"(  agent: None)",
     R"(10: spec.agent: found None, wanted Auto, as the agent starts the engine's ranks)"},
    {kAppend, R"(  agent: auto)",
     R"(10: spec.agent: found "auto", wanted Auto or None)"},
    {kAppend, R"(    parallelism: {pipeline: 2}
  elasticPolicy: {minNodes: 1})",
     R"(4: spec.numNodes: found 1 (1 rank), wanted at least 2, for the ranks of some size to be a multiple of pipeline 2)"},
    {kAppend, R"(    parallelism: {pipeline: 2}
  elasticPolicy: {minNodes: 1, nodeIncrementStep: 2}
  numNodes: 3)",
     R"(11: spec.elasticPolicy: found no size at which the engine can train, wanted one from minNodes (1) to numNodes (3) whose ranks are a multiple of 2 and at most 2 x 8 (batch.globalSequences))"},
    {kAppend, R"(    parallelism: {pipeline: 3, pipelineSchedule: Interleaved, chunksPerStage: 2}
  elasticPolicy: {minNodes: 1}
  numNodes: 5)",
     R"(11: spec.elasticPolicy: found no size at which the engine can train, wanted one from minNodes (1) to numNodes (5) whose ranks are a multiple of 3 and at most 3 x 8 (batch.globalSequences), with a multiple of pipeline (3) micro-batches per data-parallel rank under Interleaved)"},
    {kAppend, R"(  elasticPolicy: {minNodes: 2})",
     R"(10: spec.elasticPolicy.minNodes: found 2, wanted at most numNodes (1))"},
    {kAppend, R"(  elasticPolicy: {minNodes: 0})",
     R"(10: spec.elasticPolicy.minNodes: found 0, wanted a number from 1 to 65536)"},
    {kAppend, R"(  elasticPolicy: {nodeIncrementStep: 0})",
     R"(10: spec.elasticPolicy.nodeIncrementStep: found 0, wanted a number from 1 to 65536)"},
    {kAppend, R"(  elasticPolicy: {allowedNumNodes: [2]})",
     R"(10: spec.elasticPolicy.allowedNumNodes: found no size from minNodes to numNodes, wanted one from 1 to 1)"},
    {kAppend, R"(  elasticPolicy: {allowedNumNodes: [1, 3, 2]})",
     R"(10: spec.elasticPolicy.allowedNumNodes[2]: found 2, wanted more than the previous item, 3)"},
    {kAppend, R"(  elasticPolicy: {allowedNumNodes: [1], nodeIncrementStep: 2})",
     R"(10: spec.elasticPolicy.nodeIncrementStep: found 2, wanted 1 or nothing, as allowedNumNodes is given)"},
    {kAppend, R"(  spares: {count: 1})",
     R"(10: spec.spares.count: found 1, wanted 0, as only failurePolicy.restartStrategy InPlace promotes spares)"},
    {kAppend, R"(  spares: {mode: Hot})",
     R"(10: spec.spares.mode: found "Hot", wanted Warm)"},
    {kAppend, R"(  spares: {mode: Cold})",
     R"(10: spec.spares.mode: found Cold, wanted Warm (not in this version))"},
    {kAppend, R"(  failurePolicy: {restartStrategy: Recreate})",
     R"(10: spec.failurePolicy.restartStrategy: found "Recreate", wanted RecreateAll, ReplacePod or InPlace)"},
    {kAppend, R"(  failurePolicy: {budgets: [{class: Hang}, {class: Hang}]})",
     R"(10: spec.failurePolicy.budgets[1].class: found Hang, wanted each class once)"},
    {kAppend, R"(  failurePolicy: {budgets: [{maxRestarts: 1}]})",
     R"(10: spec.failurePolicy.budgets[0].class: found nothing, wanted a value: Kind of failure)"},
    {kAppend, R"(  failurePolicy: {budgets: [{class: Hang, maxRestarts: -1}]})",
     R"(10: spec.failurePolicy.budgets[0].maxRestarts: found -1, wanted a number from 0 to 1000000)"},
    {kAppend, R"(  failurePolicy: {budgets: [{class: Hang, windowSeconds: 0}]})",
     R"(10: spec.failurePolicy.budgets[0].windowSeconds: found 0, wanted a number from 1 to 315360000)"},
    {kAppend, R"(  failurePolicy: {backoff: {initialSeconds: 10, maxSeconds: 5}})",
     R"(10: spec.failurePolicy.backoff.initialSeconds: found 10, wanted at most maxSeconds (5))"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob}]})",
     R"(10: spec.failurePolicy.rules[0].onExitCodes: found nothing, wanted onExitCodes or onPodConditions)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onExitCodes: {values: [1]}, onPodConditions: [{type: Ready}]}]})",
     R"(10: spec.failurePolicy.rules[0].onPodConditions: found a list beside onExitCodes, wanted one of the two)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onExitCodes: {values: []}}]})",
     R"(10: spec.failurePolicy.rules[0].onExitCodes.values: found an empty list, wanted at least 1 item)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onExitCodes: {values: [256]}}]})",
     R"(10: spec.failurePolicy.rules[0].onExitCodes.values[0]: found 256, wanted a number from 0 to 255)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onExitCodes: {values: [0]}}]})",
     R"(10: spec.failurePolicy.rules[0].onExitCodes.values[0]: found 0, wanted a failure code, 1 to 255)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a b, action: FailJob, onExitCodes: {values: [1]}}]})",
     R"(10: spec.failurePolicy.rules[0].name: found "a b", wanted a letter and then letters, digits, '-' and '_')"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, countTowardsMax: false, onExitCodes: {values: [1]}}]})",
     R"(10: spec.failurePolicy.rules[0].countTowardsMax: found false, wanted nothing, as action is not RestartJob)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onPodConditions: [{type: Ready, status: True}]}]})",
     R"(10: spec.failurePolicy.rules[0].onPodConditions[0].status: found True, wanted text: put it in quotes)"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: FailJob, onPodConditions: [{type: Ready, status: Maybe}]}]})",
     R"(10: spec.failurePolicy.rules[0].onPodConditions[0].status: found "Maybe", wanted "True", "False" or "Unknown")"},
    {kAppend, R"(  failurePolicy: {rules: [{name: a, action: Ignore, onExitCodes: {values: [1]}}, {name: a, action: Ignore, onExitCodes: {values: [2]}}]})",
     R"(10: spec.failurePolicy.rules[1].name: found "a", wanted a name that no other rule has)"},
    {kAppend, R"(  progressPolicy: {minStallSeconds: 700})",
     R"(10: spec.progressPolicy.minStallSeconds: found 700, wanted at most maxStallSeconds (600))"},
    {kAppend, R"(  progressPolicy: {stallFactor: 1})",
     R"(10: spec.progressPolicy.stallFactor: found 1, wanted a number from 2 to 100000)"},
    {kAppend, R"(  progressPolicy: {onStall: Panic})",
     R"(10: spec.progressPolicy.onStall: found "Panic", wanted Report, DumpStacks, RestartJob, RestartProcess, ReplacePod or ReplaceNode)"},
    {kAppend, R"(  checkpointPolicy: {storage: {}})",
     R"(10: spec.checkpointPolicy.storage.persistentVolumeClaim: found nothing, wanted a value: Claim of a volume that all pods share (ReadWriteMany))"},
    {kAppend, R"(  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: Ckpt}}})",
     R"(10: spec.checkpointPolicy.storage.persistentVolumeClaim.claimName: found "Ckpt", wanted the name of a PersistentVolumeClaim)"},
    {kAppend, R"(  checkpointPolicy: {storage: {hostPath: /x}})",
     R"(10: spec.checkpointPolicy.storage.persistentVolumeClaim: found nothing, wanted a value: Claim of a volume that all pods share (ReadWriteMany)
10: spec.checkpointPolicy.storage.hostPath: found an unknown key, wanted persistentVolumeClaim)"},
    {kAppend, R"(  checkpointPolicy: {path: /abs})",
     R"(10: spec.checkpointPolicy.path: found "/abs", wanted a relative path without ..)"},
    {kAppend, R"(  checkpointPolicy: {path: a/../../b})",
     R"(10: spec.checkpointPolicy.path: found "a/../../b", wanted a relative path without ..)"},
    {kAppend, R"(  checkpointPolicy: {keepLast: 0})",
     R"(10: spec.checkpointPolicy.keepLast: found 0, wanted a number from 1 to 10000)"},
    {kAppend, R"(  checkpointPolicy: {everySteps: -1})",
     R"(10: spec.checkpointPolicy.everySteps: found -1, wanted a number from 0 to 1000000000000)"},
    {kAppend, R"(  checkpointPolicy: {memoryEverySteps: 5})",
     R"(10: spec.checkpointPolicy.memoryEverySteps: found 5, wanted 0, as only failurePolicy.restartStrategy InPlace resumes from memory)"},
    {kAppend, R"(  checkpointPolicy: {memoryReplicas: 2})",
     R"(10: spec.checkpointPolicy.memoryReplicas: found 2, wanted a number from 0 to 1)"},
    {kAppend, R"(  numNodes: 2
  checkpointPolicy: {memoryReplicas: 1})",
     R"(11: spec.checkpointPolicy.memoryReplicas: found 1, wanted 0, as only failurePolicy.restartStrategy InPlace resumes from memory)"},
    {kAppend, R"(  numNodes: 2
  failurePolicy: {restartStrategy: InPlace}
  checkpointPolicy: {memoryEverySteps: 0, memoryReplicas: 1})",
     R"(12: spec.checkpointPolicy.memoryReplicas: found 1, wanted 0, as checkpointPolicy.memoryEverySteps 0 keeps no states in memory)"},
    {kAppend, R"(  failurePolicy: {restartStrategy: InPlace}
  checkpointPolicy: {memoryReplicas: 1})",
     R"(11: spec.checkpointPolicy.memoryReplicas: found 1, wanted 0, as a job of one node has no other node to keep a copy)"},
    {kAppend, R"(  successPolicy: {rules: [{}]})",
     R"(10: spec.successPolicy.rules[0].succeededIndexes: found nothing, wanted succeededIndexes or succeededCount)"},
    {kAppend, R"(  successPolicy: {rules: [{succeededIndexes: 0}]})",
     R"(10: spec.successPolicy.rules[0].succeededIndexes: found 0, wanted text: put it in quotes)"},
    {kAppend, R"(  successPolicy: {rules: [{succeededIndexes: "1"}]})",
     R"(10: spec.successPolicy.rules[0].succeededIndexes: found "1", wanted indexes below numNodes (1))"},
    {kAppend, R"(  successPolicy: {rules: [{succeededIndexes: "3-1"}]})",
     R"(10: spec.successPolicy.rules[0].succeededIndexes: found "3-1", wanted ascending indexes such as "0" or "0-3,7")"},
    {kAppend, R"(  successPolicy: {rules: [{succeededCount: 2}]})",
     R"(10: spec.successPolicy.rules[0].succeededCount: found 2, wanted at most 1, the number of indexes)"},
    {kAppend, R"(  scheduling: {provider: Volcano})",
     R"(10: spec.scheduling.provider: found Volcano, wanted None (not in this version))"},
    {kAppend, R"(  scheduling: {queue: fast})",
     R"(10: spec.scheduling.queue: found "fast", wanted no queue, as provider is None)"},
    {kAppend, R"(  scheduling: {topology: [{key: zone}]})",
     R"(10: spec.scheduling.topology: found a list, wanted an empty list (not in this version))"},
    {kAppend, R"(  rendezvous: {port: 70000})",
     R"(10: spec.rendezvous.port: found 70000, wanted a number from 1 to 65535)"},
    {kAppend, R"(  keepFailedPods: -1)",
     R"(10: spec.keepFailedPods: found -1, wanted a number from 0 to 100)"},
    {kAppend, R"(  template: {spec: {containers: []}})",
     R"(10: spec.template.spec.containers: found an empty list, wanted the container `trainer`)"},
    {kAppend, R"(  template: {spec: {}})",
     R"(10: spec.template.spec.containers: found nothing, wanted a list of containers)"},
    {kAppend, R"(  template: {metadata: {labels: {trainyard.dev/role: x}}, spec: {containers: [{name: trainer}]}})",
     R"(10: spec.template.metadata.labels.trainyard.dev/role: found "x", wanted a label with another prefix: trainyard.dev/ is reserved)"},
    {kAppend, R"(  template: {spec: {restartPolicy: Always, containers: [{name: trainer}]}})",
     R"(10: spec.template.spec.restartPolicy: found "Always", wanted Never: failurePolicy controls restarts)"},
    {kAppend, R"(  template: {spec: {nodeName: n1, containers: [{name: trainer}]}})",
     R"(10: spec.template.spec.nodeName: found "n1", wanted no nodeName: use nodeSelector or affinity)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer, env: [{name: RANK, value: "0"}]}]}})",
     R"(10: spec.template.spec.containers[0].env[0].name: found RANK, wanted another name: Trainyard sets this one for every process)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer, env: [{name: TRAINYARD_ANYTHING}]}]}})",
     R"(10: spec.template.spec.containers[0].env[0].name: found TRAINYARD_ANYTHING, wanted another name: Trainyard sets this one for every process)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer, env: [{name: A, value: 1}]}]}})",
     R"(10: spec.template.spec.containers[0].env[0].value: found 1, wanted text: put it in quotes)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer}, {name: trainer}]}})",
     R"(10: spec.template.spec.containers[1].name: found "trainer", wanted a name that no other container has)"},
    {kAppend, R"(  template: {spec: {containers: [{name: a, image: x}, {name: b, image: x}]}})",
     R"(10: spec.template.spec.containers: found 2 containers, none named trainer, wanted one named trainer, whose exit ends the pod)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer}, {name: side}]}})",
     R"(10: spec.template.spec.containers[1].image: found nothing, wanted a container image)"},
    {kAppend, R"(  template: {spec: {containers: [{name: trainer, securityContext: {x: 0644}}]}})",
     R"(10: spec.template.spec.containers[0].securityContext.x: found 0644, wanted a plain decimal number such as 493 or 0.5, or quotes around it where it is text)"},
    {5, R"(  engin:)",
     R"(4: spec.engine: found nothing, wanted engine, or a template with its own program
5: spec.engin: found an unknown key, wanted engine)"},
    {kAppend, R"(---
kind: TrainingJob)",
     R"(11: found a second document, wanted one document per file (the first starts on line 1))"},
    {kAppend, R"(  spares: *nowhere)",
     R"(10: wanted valid YAML: the referenced anchor is not defined)"},
};
// clang-format on

TEST(BadJobTest, NameLineFieldFoundAndWanted) {
  for (const BadManifest& bad : kBadJobs) {
    EXPECT_EQ(faults_of(bad), bad.faults) << "line " << bad.line << ": " << bad.text;
  }
}

TEST(BadJobTest, EachDataParallelRankOnAGpuHasAGrain) {
  std::vector<std::string> lines = valid_manifest();
  lines[4] = "  numProcPerNode: 3\n  engine:\n    device: Cuda";
  lines[7] = "    batch: {globalSequences: 8, microSequences: 4}";
  std::string text;
  for (const std::string& line : lines)
    text += line + '\n';
  const std::vector<Fault> faults = check_training_job(text, {.file = ""}).faults;
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_EQ(to_string(faults.front()),
            ":6: spec.engine.numerics.grainSequences: found 4, wanted at most 2, so that each of "
            "the 3 data-parallel ranks has a grain of batch.globalSequences (8)");
}

}  // namespace
}  // namespace trainyard::api
