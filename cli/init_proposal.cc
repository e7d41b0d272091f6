#include "cli/init_proposal.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string_view>

#include "cli/run/format.h"
#include "cli/training_rate.h"
#include "common/api/decode.h"
#include "common/io/control_group.h"
#include "common/text/json_writer.h"
#include "worker/job/job_plan.h"
#include "worker/job/resolve.h"
#include "worker/model/family.h"

namespace trainyard::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kRanksMax = 2;
/// Tokens that each preset is proposed up to.
constexpr struct {
  int64_t tokens;
  const char* preset;
} kSizes[] = {{300'000, "gpt2-100k"}, {50'000'000, "gpt2-3m"}, {500'000'000, "gpt2-11m"}};
constexpr char kLargest[] = "gpt2-124m";
/// A smaller model is proposed where a larger one would have fewer steps.
constexpr int64_t kStepsMin = 100;
constexpr int64_t kStepsMaxInCluster = 2000;
/// What is not measured, with --steps or for a cluster: parameters x tokens per second of one
/// processor. A smaller model is proposed where a run would take longer than a day.
constexpr double kAssumedSpeed = 1e10;
constexpr double kSecondsMax = 86'400;
constexpr int64_t kGiB = int64_t{1} << 30;
/// Of a model with more parameters the rate follows from that of the largest that is measured.
constexpr char kLargestMeasured[] = "gpt2-11m";
constexpr int64_t kParametersMeasured = 40'000'000;
/// The part of a run in which it trains and evaluates: the rest are its start and checkpoints.
constexpr double kTrainingShare = 0.9;
/// Tests give parameters x tokens per second here, in place of measuring.
constexpr char kEnvSpeed[] = "TRAINYARD_INIT_SPEED";

/// As manifests/examples/claim-and-filler.yaml, for a job of one node.
constexpr char kClaim[] =
    R"(# The claim of the job, and a pod through which its data get there and its checkpoints back
# (docs/operating/jobs.md). If a claim of this name exists already, apply the pod alone.
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: training}
spec:
  accessModes: [ReadWriteOnce]     # ReadWriteMany for a job of several nodes
  # storageClassName: nfs          # if the cluster's default class does not fit
  resources: {requests: {storage: $STORAGE}}     # data, and the checkpoints that are kept
---
apiVersion: v1
kind: Pod
metadata: {name: filler}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext:                 # the user that the job's pods run as
    {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: filler
    image: busybox:1.37            # any image with tar, which kubectl cp needs
    command: [sleep, "86400"]
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    volumeMounts:
    - {name: claim, mountPath: /claim}
  volumes:
  - {name: claim, persistentVolumeClaim: {claimName: training}}
)";

/// Kaplan et al. 2020, "Scaling Laws for Neural Language Models", equation D.1, to one digit.
double learning_rate_for(int64_t parameters) {
  const double rate = 0.003239 - 0.0001395 * std::log(static_cast<double>(parameters));
  return std::round(rate * 1e4) / 1e4;
}

Result<api::ModelSpec> model_of(const api::Preset& preset, int64_t vocabulary) {
  api::EngineSpec spec;
  api::apply_preset(preset.name, spec.model);
  api::derive_defaults(spec);
  spec.model.vocab = std::max(vocabulary, preset.vocab);
  return spec.model;
}

Result<int64_t> parameters_of(const api::ModelSpec& model) {
  TRAINYARD_ASSIGN(const engine::Model built, engine::build_model(model));
  return built.parameter_count();
}

/// What follows from the preset and the text.
Status size(const InitArguments& arguments, int64_t vocabulary, Proposal& job) {
  TRAINYARD_ASSIGN(const api::ModelSpec model, model_of(job.preset, vocabulary));
  job.vocabulary = model.vocab;
  TRAINYARD_ASSIGN(job.parameters, parameters_of(model));
  job.learning_rate = learning_rate_for(job.parameters);
  // Of little text some sixteen different sequences a step are wanted all the same.
  job.length = std::min<int64_t>(job.preset.max_positions, 256);
  if (job.preset.name == kLargest) job.length = job.preset.max_positions;
  while (job.length > 16 && job.length * 16 > job.tokens)
    job.length /= 2;
  if (job.tokens <= job.length) {
    return Error{ErrorCode::kInvalidData, arguments.data + ": found " + std::to_string(job.tokens) +
                                              " tokens to train on, wanted more than " +
                                              std::to_string(job.length)};
  }
  job.sequences = job.preset.layers > 6 ? 64 : 16;
  job.micro = job.preset.layers > 6 ? 1 : 4;
  return {};
}

/// Tokens per second of this machine. Errors: those of measured_rate().
Result<double> rate_of(const InitArguments& arguments, const Proposal& job) {
  const auto parameters = static_cast<double>(job.parameters);
  const char* given = std::getenv(kEnvSpeed);  // NOLINT(concurrency-mt-unsafe): no other thread yet
  const double speed = given == nullptr ? 0 : std::strtod(given, nullptr);
  if (std::isfinite(speed) && speed > 0) return speed / parameters;
  const bool is_large = job.parameters > kParametersMeasured;
  const auto presets = api::presets();
  const auto preset = std::ranges::find_if(presets, [&](const api::Preset& entry) {
    return entry.name == (is_large ? kLargestMeasured : job.preset.name);
  });
  TRAINYARD_ASSIGN(const api::ModelSpec model, model_of(*preset, job.vocabulary));
  TRAINYARD_ASSIGN(const int64_t measured_parameters, parameters_of(model));
  api::EngineSpec spec{.model = model};
  spec.data.sequence_length = std::min(job.length, preset->max_positions);
  spec.batch = {.global_sequences = job.sequences, .micro_sequences = is_large ? 4 : job.micro};
  TRAINYARD_ASSIGN(const double rate,
                   measured_rate(spec, fs::path(arguments.out) / kInitData / kInitTrain));
  return rate * static_cast<double>(measured_parameters) / parameters;
}

/// The next smaller preset of kSizes; null: there is none.
const api::Preset* smaller_than(const api::Preset& preset) {
  std::string_view name;
  for (const auto& entry : kSizes) {
    if (entry.preset == preset.name) break;
    name = entry.preset;
  }
  const auto presets = api::presets();
  const auto found =
      std::ranges::find_if(presets, [&](const api::Preset& entry) { return entry.name == name; });
  return found == presets.end() ? nullptr : &*found;
}

/// Ten epochs.
int64_t steps_wanted(const Proposal& job) {
  return std::max<int64_t>(kStepsMin, 10 * job.tokens / job.step_tokens());
}

/// The steps that are asked for, or those of a job in a cluster, of a model that does them in a
/// day.
Status choose_unmeasured(const InitArguments& arguments, int64_t vocabulary, Proposal& job) {
  const double processors = arguments.cluster ? 1 : usable_cpus();
  while (true) {
    job.steps = arguments.steps > 0 ? arguments.steps
                                    : std::min(steps_wanted(job), kStepsMaxInCluster) / 10 * 10;
    const double work = static_cast<double>(job.steps) * static_cast<double>(job.step_tokens()) *
                        static_cast<double>(job.parameters);
    job.takes_days = work / (kAssumedSpeed * processors) > kSecondsMax;
    const api::Preset* smaller = smaller_than(job.preset);
    if (!job.takes_days || !arguments.preset.empty() || smaller == nullptr) return {};
    job.preset = *smaller;
    TRAINYARD_TRY(size(arguments, vocabulary, job));
  }
}

/// The model that can do some steps in the time there is, and how many it does.
Status choose_measured(const InitArguments& arguments, int64_t vocabulary, Proposal& job) {
  const int64_t minutes = arguments.minutes > 0 ? arguments.minutes : kInitMinutes;
  while (true) {
    const Result<double> rate = rate_of(arguments, job);
    job.tokens_per_second = rate.value_or(0);
    job.not_measured = rate ? "" : rate.error().message;
    const double tokens_in_time =
        60 * static_cast<double>(minutes) * kTrainingShare * job.tokens_per_second;
    const double in_time =
        std::max(0.0, tokens_in_time - static_cast<double>(job.evaluation_tokens())) /
        static_cast<double>(job.step_tokens());
    const auto wanted = static_cast<double>(steps_wanted(job));
    job.steps =
        static_cast<int64_t>(rate ? std::clamp(in_time, 10.0, wanted)
                                  : std::min(wanted, static_cast<double>(kStepsMaxInCluster)));
    const api::Preset* smaller = smaller_than(job.preset);
    if (in_time >= kStepsMin || !arguments.preset.empty() || smaller == nullptr) break;
    job.preset = *smaller;
    TRAINYARD_TRY(size(arguments, vocabulary, job));
  }
  // A multiple of ten, so that the last of ten evaluations is that of the last step.
  job.steps = job.steps / 10 * 10;
  return {};
}

/// What its one rank in a cluster holds, by the plan.
Result<int64_t> planned_bytes(const Proposal& job) {
  TRAINYARD_ASSIGN(const api::ModelSpec model, model_of(job.preset, job.vocabulary));
  api::EngineSpec spec{.model = model};
  spec.data.sequence_length = job.length;
  spec.batch = {.global_sequences = job.sequences, .micro_sequences = job.micro};
  TRAINYARD_TRY(engine::resolve_spec(spec, std::nullopt));
  TRAINYARD_ASSIGN(const engine::MemoryPlan plan, engine::plan_job(spec, {}));
  return plan.largest().total();
}

/// "3Gi", at least so many bytes.
std::string gibibytes(int64_t bytes) { return std::to_string((bytes + kGiB - 1) / kGiB) + "Gi"; }

std::string epochs_text(const Proposal& job) {
  const double epochs = job.epochs();
  if (epochs >= 10) return std::to_string(std::llround(epochs));
  std::ostringstream text;
  text.precision(2);
  text << epochs;
  return text.str();
}

}  // namespace

int64_t Proposal::evaluation_tokens() const {
  // A pass forward is about a third of a step's.
  return kInitEvaluations * std::min(kInitEvaluated, held_out_tokens / length) * length / 3;
}

double Proposal::seconds() const {
  if (tokens_per_second == 0) return 0;
  return static_cast<double>(steps * step_tokens() + evaluation_tokens()) /
         (kTrainingShare * tokens_per_second);
}

std::string init_name_of(const fs::path& data) {
  std::error_code code;
  const fs::path whole = fs::weakly_canonical(data, code);
  return api::job_name_of(code ? data : whole, "model");
}

Result<api::Preset> init_preset_of(const InitArguments& arguments, int64_t tokens) {
  std::string name = arguments.preset;
  if (name.empty()) {
    const auto* const size =
        std::ranges::find_if(kSizes, [&](const auto& entry) { return tokens <= entry.tokens; });
    name = size == std::end(kSizes) ? kLargest : size->preset;
  }
  std::string names;
  for (const api::Preset& preset : api::presets()) {
    if (preset.name == name) return preset;
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  return Error{ErrorCode::kInvalidConfig, "--preset: found '" + name + "', wanted one of " + names};
}

Result<Proposal> propose(const InitArguments& arguments, const data::DatasetManifest& data) {
  Proposal job;
  job.name = init_name_of(arguments.data);
  if (arguments.tokenizer != "bytes" && !arguments.cluster) {
    text::JsonWriter path;  // a JSON string is one of YAML
    path.string(fs::absolute(arguments.tokenizer).lexically_normal().string());
    job.tokenizer = path.take();
  }
  job.files = std::ssize(data.recipe.sources);
  for (const data::SplitRecord& split : data.splits)
    (split.name == kInitHeldOut ? job.held_out_tokens : job.tokens) = split.tokens;
  for (const data::SourceRecord& source : data.recipe.sources)
    job.bytes += source.bytes;
  TRAINYARD_ASSIGN(job.preset, init_preset_of(arguments, job.tokens));
  job.ranks = arguments.cluster ? 1 : std::clamp<int64_t>(usable_cpus(), 1, kRanksMax);
  TRAINYARD_TRY(size(arguments, data.recipe.vocabulary, job));
  const bool is_measured = arguments.steps == 0 && !arguments.cluster;
  TRAINYARD_TRY(
      (is_measured ? choose_measured : choose_unmeasured)(arguments, data.recipe.vocabulary, job));
  if (arguments.cluster) {
    TRAINYARD_ASSIGN(job.memory_bytes, planned_bytes(job));
  }
  if (job.held_out_tokens <= job.length) job.held_out_tokens = 0;
  return job;
}

std::string si(int64_t number) {
  std::ostringstream text;
  text.precision(3);
  const auto value = static_cast<double>(number);
  if (number >= 1'000'000'000)
    text << value / 1e9 << "G";
  else if (number >= 1'000'000)
    text << value / 1e6 << "M";
  else if (number >= 1'000)
    text << value / 1e3 << "k";
  else
    text << number;
  return text.str();
}

std::string init_manifest_of(const Proposal& job, bool cluster) {
  const std::string folder = cluster ? "/data/" : std::string(kInitData) + "/";
  const int64_t every = std::max<int64_t>(1, job.steps / kInitEvaluations);
  std::ostringstream out;
  out << "# " << job.files << (job.files == 1 ? " file" : " files") << " of text, " << si(job.bytes)
      << " bytes. Every field: docs/reference/trainingjob.md.\n"
      << "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: " << job.name
      << "}\nspec:\n  numNodes: 1\n  numProcPerNode: " << job.ranks
      << "          # ranks; any number gives the same bits\n  engine:\n    model:\n"
      << "      preset: " << job.preset.name << "        # " << job.preset.description << ", "
      << si(job.parameters) << " parameters\n";
  if (job.preset.vocab != job.vocabulary)
    out << "      vocab: " << job.vocabulary << "          # as in the tokenizer\n";
  out << "    data:\n      tokens: [" << folder << "train]     # " << si(job.tokens) << " tokens\n";
  if (job.held_out_tokens > 0) {
    out << "      validation: [" << folder << kInitHeldOut << "]     # " << si(job.held_out_tokens)
        << " tokens that training never sees\n";
  } else {
    out << "      # nothing is held out; with more or larger files, init holds out some of them to "
           "measure the loss on unseen text\n";
  }
  if (!job.tokenizer.empty())
    out << "      tokenizer: " << job.tokenizer << "     # `trainyard sample` loads it from here\n";
  out << "      sequenceLength: " << job.length
      << "\n    batch: {globalSequences: " << job.sequences << ", microSequences: " << job.micro
      << "}     # " << si(job.step_tokens())
      << " tokens per step; microSequences changes memory, not the result\n    steps: " << job.steps
      << "     # reads the text " << epochs_text(job) << " times"
      << (job.seconds() > 0 ? ", in about " + duration_text(job.seconds()) : "") << "\n"
      << "    optimizer: {learningRate: " << job.learning_rate
      << "}     # chosen by the number of parameters; halve it if the loss jumps\n"
      << "    learningRateSchedule: {name: Cosine, warmupSteps: "
      << std::max<int64_t>(1, job.steps / 20) << ", horizonSteps: " << job.steps
      << "}     # the rate falls until horizonSteps: to train further later, set the final number "
         "of steps here now\n";
  if (job.held_out_tokens > 0)
    out << "    evaluation: {everySteps: " << every << ", sequences: " << kInitEvaluated << "}\n";
  out << "  checkpointPolicy:\n    storage: {persistentVolumeClaim: {claimName: "
      << (cluster ? "training" : "checkpoints") << "}}"
      << (cluster ? "" : "     # locally a folder in the run directory")
      << "\n    everySteps: " << every << "\n    keepLast: 3\n";
  if (!cluster) return out.str();
  out << "  template:\n    spec:\n      containers:\n      - name: trainer\n        resources:\n"
      << "          requests: {cpu: \"1\", memory: " << gibibytes(job.memory_bytes / 4 * 5)
      << "}     # by `trainyard plan`, and a quarter more\n        volumeMounts:\n"
      << "        - {name: training, mountPath: /data, subPath: " << init_claim_folder(job)
      << ", readOnly: true}\n"
      << "      volumes:\n      - {name: training, persistentVolumeClaim: {claimName: training}}\n";
  return out.str();
}

std::string init_claim_folder(const Proposal& job) { return kInitClaimData + ("/" + job.name); }

std::string init_claim(const Proposal& job) {
  constexpr int64_t kCheckpoints = 4;  // three that are kept, and the one that is written
  constexpr int64_t kBytes = 12;       // of a parameter, in each
  const int64_t bytes =
      kCheckpoints * kBytes * job.parameters + 4 * (job.tokens + job.held_out_tokens);
  std::string text = kClaim;
  const std::string place = "$STORAGE";
  return text.replace(text.find(place), place.size(),
                      gibibytes(std::max(bytes / 4 * 5, 10 * kGiB)));
}

}  // namespace trainyard::cli
