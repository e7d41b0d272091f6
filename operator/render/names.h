#pragma once

#include <string>

#include "common/api/training_job.h"

/// The words that pods and their companions carry, in one place: whoever renders writes them, the
/// cache reads them back.
namespace trainyard::render {

// Labels of ours.
inline constexpr char kLabelJobName[] = "trainyard.dev/job-name";
inline constexpr char kLabelJobUid[] = "trainyard.dev/job-uid";
inline constexpr char kLabelNodeIndex[] = "trainyard.dev/node-index";
inline constexpr char kLabelRole[] = "trainyard.dev/role";
inline constexpr char kLabelGeneration[] = "trainyard.dev/created-generation";
inline constexpr char kLabelMember[] = "trainyard.dev/member";
inline constexpr char kMemberTrue[] = "true";
/// Number of a pod that was made as a spare, also once it is a member.
inline constexpr char kLabelSpare[] = "trainyard.dev/spare";

/// Init container that brings the agent into other images.
inline constexpr char kAgentContainer[] = "trainyard-agent";

/// Annotation with the name of the container whose exit ends the pod: what admission adds to a pod
/// may stand before it.
inline constexpr char kAnnotationTrainer[] = "trainyard.dev/trainer-container";

// Labels that tools for Kubeflow's jobs and for Indexed Jobs look for.
inline constexpr char kLabelKubeflowJobName[] = "training.kubeflow.org/job-name";
inline constexpr char kLabelKubeflowReplicaType[] = "training.kubeflow.org/replica-type";
inline constexpr char kLabelKubeflowReplicaIndex[] = "training.kubeflow.org/replica-index";
inline constexpr char kLabelKubeflowJobRole[] = "training.kubeflow.org/job-role";
inline constexpr char kLabelCompletionIndex[] = "batch.kubernetes.io/job-completion-index";

/// The audience of the tokens that pods show to the control stream: one made for somebody else is
/// not accepted, and one of ours opens nothing else.
inline constexpr char kControlAudience[] = "trainyard.dev/control";

/// Name of the port of the job's Service.
inline constexpr char kRendezvousPort[] = "rendezvous";

/// Host name of the pod of an index: `<job>-<index>`; it is the same for its successors.
std::string host_name(const std::string& job_name, int64_t node_index);

/// That of a spare, which is known by its address until it has an index.
std::string spare_host_name(const std::string& job_name);

/// The name that resolves to that pod inside the cluster: `<job>-<index>.<job>.<namespace>.svc`.
std::string dns_name(const api::ObjectMeta& job, int64_t node_index);

/// Of the headless Service and of the PodDisruptionBudget: the job's own name.
std::string service_name(const api::ObjectMeta& job);

/// ConfigMap with the authorities that the job's agents trust: `<job>-control`.
std::string control_config_name(const api::ObjectMeta& job);

/// `<job>-engine-<hash>` of what the ConfigMap holds: a changed engine is another object.
std::string engine_config_name(const api::ObjectMeta& job, const api::TrainingJobSpec& spec);

}  // namespace trainyard::render
