#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

#include "common/api/open_word.h"
#include "common/api/training_job.h"

/// The names that enumerators have in manifests, both ways.
namespace trainyard::api {

/// An enumerator and its name.
template <class E>
struct EnumName {
  E value;
  std::string_view name;
  bool planned = false;  ///< described, and not there yet: refused
};
inline constexpr bool kPlanned = true;

/// Specialised for every enum of the API: `kNames`, one entry an enumerator, in declaration order.
template <class E>
struct EnumTable;

template <class E>
concept ApiEnum = requires {
  EnumTable<E>::kNames.size();
};

/// The name in manifests: name_of(RestartStrategy::kInPlace) is "InPlace".
template <ApiEnum E>
constexpr std::string_view name_of(E value) {
  for (const EnumName<E>& entry : EnumTable<E>::kNames) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <ApiEnum E>
std::string_view name_of(const OpenWord<E>& word) {
  return word.value() ? name_of(*word.value()) : std::string_view(word.unknown_word());
}

/// The inverse of name_of; nullopt for a name that is none. Case matters.
template <ApiEnum E>
constexpr std::optional<E> enum_from_name(std::string_view name) {
  for (const EnumName<E>& entry : EnumTable<E>::kNames) {
    if (entry.name == name) return entry.value;
  }
  return std::nullopt;
}

template <>
struct EnumTable<Task> {
  static constexpr auto kNames = std::to_array<EnumName<Task>>({
      {Task::kCausalLM, "CausalLM"},
      {Task::kSequenceClassification, "SequenceClassification", kPlanned},
      {Task::kMaskedLM, "MaskedLM", kPlanned},
  });
};

template <>
struct EnumTable<ModelFamily> {
  static constexpr auto kNames = std::to_array<EnumName<ModelFamily>>({
      {ModelFamily::kGPT2, "GPT2"},
      {ModelFamily::kLlama, "Llama"},
      {ModelFamily::kQwen2, "Qwen2"},
      {ModelFamily::kQwen3, "Qwen3"},
      {ModelFamily::kMistral, "Mistral"},
      {ModelFamily::kBert, "Bert", kPlanned},
      {ModelFamily::kMixtral, "Mixtral", kPlanned},
  });
};

template <>
struct EnumTable<RopeScalingType> {
  static constexpr auto kNames = std::to_array<EnumName<RopeScalingType>>({
      {RopeScalingType::kLinear, "Linear"},
      {RopeScalingType::kLlama3, "Llama3"},
      {RopeScalingType::kYarn, "Yarn"},
  });
};

template <>
struct EnumTable<Documents> {
  static constexpr auto kNames = std::to_array<EnumName<Documents>>({
      {Documents::kJoin, "Join"},
      {Documents::kIsolate, "Isolate"},
  });
};

template <>
struct EnumTable<OptimizerName> {
  static constexpr auto kNames = std::to_array<EnumName<OptimizerName>>({
      {OptimizerName::kAdamW, "AdamW"},
  });
};

template <>
struct EnumTable<ScheduleName> {
  static constexpr auto kNames = std::to_array<EnumName<ScheduleName>>({
      {ScheduleName::kCosine, "Cosine"},
      {ScheduleName::kLinear, "Linear"},
      {ScheduleName::kConstant, "Constant"},
      {ScheduleName::kWSD, "WSD", kPlanned},
  });
};

template <>
struct EnumTable<StartWhat> {
  static constexpr auto kNames = std::to_array<EnumName<StartWhat>>({
      {StartWhat::kState, "State"},
      {StartWhat::kWeights, "Weights"},
  });
};

template <>
struct EnumTable<NumberFormat> {
  static constexpr auto kNames = std::to_array<EnumName<NumberFormat>>({
      {NumberFormat::kFP32, "FP32"},
      {NumberFormat::kBF16, "BF16"},
      {NumberFormat::kFP16, "FP16", kPlanned},
      {NumberFormat::kFP8, "FP8", kPlanned},
  });
};

template <>
struct EnumTable<ParallelMode> {
  static constexpr auto kNames = std::to_array<EnumName<ParallelMode>>({
      {ParallelMode::kDistributed, "Distributed"},
      {ParallelMode::kDataParallel, "DataParallel"},
  });
};

template <>
struct EnumTable<PipelineSchedule> {
  static constexpr auto kNames = std::to_array<EnumName<PipelineSchedule>>({
      {PipelineSchedule::kNaive, "Naive"},
      {PipelineSchedule::kGPipe, "GPipe"},
      {PipelineSchedule::kOneFOneB, "OneFOneB"},
      {PipelineSchedule::kInterleaved, "Interleaved"},
      {PipelineSchedule::kZeroBubbleH1, "ZeroBubbleH1"},
      {PipelineSchedule::kPipeDream, "PipeDream", kPlanned},
  });
};

template <>
struct EnumTable<Recompute> {
  static constexpr auto kNames = std::to_array<EnumName<Recompute>>({
      {Recompute::kNone, "None"},
      {Recompute::kSelective, "Selective"},
      {Recompute::kFull, "Full"},
  });
};

template <>
struct EnumTable<ContextMode> {
  static constexpr auto kNames = std::to_array<EnumName<ContextMode>>({
      {ContextMode::kUlysses, "Ulysses"},
      {ContextMode::kRing, "Ring"},
  });
};

template <>
struct EnumTable<Offload> {
  static constexpr auto kNames = std::to_array<EnumName<Offload>>({
      {Offload::kOptimizer, "Optimizer"},
      {Offload::kParameters, "Parameters"},
      {Offload::kActivations, "Activations"},
  });
};

template <>
struct EnumTable<NumericsMode> {
  static constexpr auto kNames = std::to_array<EnumName<NumericsMode>>({
      {NumericsMode::kAuto, "Auto"},
      {NumericsMode::kCanonical, "Canonical"},
      {NumericsMode::kFast, "Fast"},
  });
};

template <>
struct EnumTable<Transport> {
  static constexpr auto kNames = std::to_array<EnumName<Transport>>({
      {Transport::kAuto, "Auto"},
      {Transport::kLocal, "Local"},
      {Transport::kShm, "Shm"},
      {Transport::kTcp, "Tcp"},
      {Transport::kNccl, "Nccl"},
  });
};

template <>
struct EnumTable<MemoryCheck> {
  static constexpr auto kNames = std::to_array<EnumName<MemoryCheck>>({
      {MemoryCheck::kRefuse, "Refuse"},
      {MemoryCheck::kWarn, "Warn"},
  });
};

template <>
struct EnumTable<DeviceKind> {
  static constexpr auto kNames = std::to_array<EnumName<DeviceKind>>({
      {DeviceKind::kAuto, "Auto"},
      {DeviceKind::kCpu, "Cpu"},
      {DeviceKind::kCuda, "Cuda"},
  });
};

template <>
struct EnumTable<Isa> {
  static constexpr auto kNames = std::to_array<EnumName<Isa>>({
      {Isa::kAuto, "Auto"},
      {Isa::kAmx, "Amx"},
      {Isa::kAvx512Bf16, "Avx512Bf16"},
      {Isa::kAvx512, "Avx512"},
      {Isa::kAvx2, "Avx2"},
      {Isa::kGeneric, "Generic"},
  });
};

template <>
struct EnumTable<AgentMode> {
  static constexpr auto kNames = std::to_array<EnumName<AgentMode>>({
      {AgentMode::kAuto, "Auto"},
      {AgentMode::kNone, "None"},
  });
};

template <>
struct EnumTable<SpareMode> {
  static constexpr auto kNames = std::to_array<EnumName<SpareMode>>({
      {SpareMode::kWarm, "Warm"},
      {SpareMode::kCold, "Cold", kPlanned},
  });
};

template <>
struct EnumTable<RestartStrategy> {
  static constexpr auto kNames = std::to_array<EnumName<RestartStrategy>>({
      {RestartStrategy::kRecreateAll, "RecreateAll"},
      {RestartStrategy::kReplacePod, "ReplacePod"},
      {RestartStrategy::kInPlace, "InPlace"},
  });
};

template <>
struct EnumTable<FailureClass> {
  static constexpr auto kNames = std::to_array<EnumName<FailureClass>>({
      {FailureClass::kApplication, "Application"},
      {FailureClass::kInfrastructure, "Infrastructure"},
      {FailureClass::kPreemption, "Preemption"},
      {FailureClass::kHang, "Hang"},
  });
};

template <>
struct EnumTable<RuleAction> {
  static constexpr auto kNames = std::to_array<EnumName<RuleAction>>({
      {RuleAction::kFailJob, "FailJob"},
      {RuleAction::kRestartJob, "RestartJob"},
      {RuleAction::kIgnore, "Ignore"},
  });
};

template <>
struct EnumTable<ExitCodeOperator> {
  static constexpr auto kNames = std::to_array<EnumName<ExitCodeOperator>>({
      {ExitCodeOperator::kIn, "In"},
      {ExitCodeOperator::kNotIn, "NotIn"},
  });
};

template <>
struct EnumTable<StallAction> {
  static constexpr auto kNames = std::to_array<EnumName<StallAction>>({
      {StallAction::kReport, "Report"},
      {StallAction::kDumpStacks, "DumpStacks"},
      {StallAction::kRestartJob, "RestartJob"},
      {StallAction::kRestartProcess, "RestartProcess"},
      {StallAction::kReplacePod, "ReplacePod"},
      {StallAction::kReplaceNode, "ReplaceNode"},
  });
};

template <>
struct EnumTable<SchedulingProvider> {
  static constexpr auto kNames = std::to_array<EnumName<SchedulingProvider>>({
      {SchedulingProvider::kNone, "None"},
      {SchedulingProvider::kVolcano, "Volcano", kPlanned},
      {SchedulingProvider::kCoscheduling, "Coscheduling", kPlanned},
      {SchedulingProvider::kKueue, "Kueue", kPlanned},
  });
};

template <>
struct EnumTable<JobPhase> {
  static constexpr auto kNames = std::to_array<EnumName<JobPhase>>({
      {JobPhase::kPending, "Pending"},
      {JobPhase::kStarting, "Starting"},
      {JobPhase::kRunning, "Running"},
      {JobPhase::kRestarting, "Restarting"},
      {JobPhase::kResizing, "Resizing"},
      {JobPhase::kStalled, "Stalled"},
      {JobPhase::kSuspended, "Suspended"},
      {JobPhase::kComplete, "Complete"},
      {JobPhase::kFailed, "Failed"},
  });
};

template <>
struct EnumTable<ConditionType> {
  static constexpr auto kNames = std::to_array<EnumName<ConditionType>>({
      {ConditionType::kAccepted, "Accepted"},
      {ConditionType::kSuspended, "Suspended"},
      {ConditionType::kScheduled, "Scheduled"},
      {ConditionType::kRunning, "Running"},
      {ConditionType::kRestarting, "Restarting"},
      {ConditionType::kResizing, "Resizing"},
      {ConditionType::kDegraded, "Degraded"},
      {ConditionType::kStalled, "Stalled"},
      {ConditionType::kCheckpointStale, "CheckpointStale"},
      {ConditionType::kFailureTarget, "FailureTarget"},
      {ConditionType::kSuccessCriteriaMet, "SuccessCriteriaMet"},
      {ConditionType::kComplete, "Complete"},
      {ConditionType::kFailed, "Failed"},
  });
};

template <>
struct EnumTable<ConditionStatus> {
  static constexpr auto kNames = std::to_array<EnumName<ConditionStatus>>({
      {ConditionStatus::kTrue, "True"},
      {ConditionStatus::kFalse, "False"},
      {ConditionStatus::kUnknown, "Unknown"},
  });
};

}  // namespace trainyard::api
