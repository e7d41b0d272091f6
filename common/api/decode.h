#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/fault.h"
#include "common/api/training_job.h"
#include "common/base/error.h"

/// From text (YAML or JSON) to the structs, with presets and defaults filled in. Pure but for
/// load_training_job. Thread-safe.
namespace trainyard::api {

/// Manifests larger than this are refused.
inline constexpr int64_t kMaxManifestBytes = 1 << 20;

/// What is done with a key that no field has.
enum class UnknownKeys {
  kRefuse,  ///< a fault with the nearest name: for what users write
  kIgnore,  ///< for objects that a newer version may have written
};

struct DecodeOptions {
  std::string file = "<input>";  ///< named in faults
  UnknownKeys unknown_keys = UnknownKeys::kRefuse;
  /// Puts what counts in place of what the manifest says, before rules are checked. Empty: nothing
  /// does.
  std::function<void(TrainingJobSpec& spec)> amend;
};

/// A manifest and everything that is wrong with it. `job` is meaningful only without faults.
struct CheckedJob {
  TrainingJob job;
  std::vector<Fault> faults;  ///< in line order
};

/// A job name made of a file's or folder's: "runs/My Engine.yaml" gives "my-engine"; `otherwise`
/// where no letter is in it.
std::string job_name_of(const std::filesystem::path& file, const std::string& otherwise);

/// Decodes and validates a manifest: one TrainingJob document, or (as a file of its own) a document
/// with the one key `engine`. Collects every fault.
CheckedJob check_training_job(std::string_view text, const DecodeOptions& options = {});

/// check_training_job as a Result: all faults in one kInvalidConfig message, a line each.
Result<TrainingJob> decode_training_job(std::string_view text, const DecodeOptions& options = {});

/// Reads a manifest file ("-": standard input) once, so that it may be a pipe. Errors:
/// kInvalidConfig.
Result<std::string> read_manifest(const std::filesystem::path& path);

/// What relative paths of a manifest are relative to: its folder, absolute; the current directory
/// where it comes from standard input or a pipe. Errors: kIo.
Result<std::filesystem::path> folder_of_manifest(const std::filesystem::path& path);

/// Reads and decodes a manifest file (read_manifest); relative paths of `engine` (data, tokenizer,
/// import, export) are made absolute against folder_of_manifest. `amend` as in DecodeOptions.
/// Errors: kInvalidConfig; kIo.
Result<TrainingJob> load_training_job(const std::filesystem::path& path,
                                      std::function<void(TrainingJobSpec& spec)> amend = {});

/// A status object alone, as encode_status writes it (LocalCluster's status file). Unknown keys are
/// ignored. Errors: kInvalidData.
Result<TrainingJobStatus> decode_status(std::string_view text);

/// An engine alone, without the key `engine` around it: what encode_engine writes and the worker
/// reads from TRAINYARD_ENGINE_CONFIG. Validated as within a manifest (what needs the number of
/// nodes excepted). Errors: kInvalidConfig.
Result<EngineSpec> decode_engine(std::string_view text, const DecodeOptions& options = {});

/// A checkpoint policy alone, as encode_checkpoint_policy writes it. Errors: kInvalidConfig.
Result<CheckpointPolicy> decode_checkpoint_policy(std::string_view text,
                                                  const DecodeOptions& options = {});

/// Makes the relative paths of the engine absolute against `base` (which must be absolute).
void resolve_paths(EngineSpec& engine, const std::filesystem::path& base);

}  // namespace trainyard::api
