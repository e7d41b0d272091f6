#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/api/presets.h"
#include "common/base/error.h"
#include "worker/data/dataset_manifest.h"

/// What `trainyard init` proposes for a text, and the files that say so.
namespace trainyard::cli {

/// In OUT: the folder of the data set, and its splits.
inline constexpr char kInitData[] = "data";
inline constexpr char kInitTrain[] = "train";
inline constexpr char kInitHeldOut[] = "heldout";

struct InitArguments {
  std::string data;
  std::string out;
  std::string tokenizer = "bytes";
  std::string include = "\\.(txt|md)$";
  std::string preset;
  int64_t steps = 0;
  int64_t minutes = 0;
  bool cluster = false;
  bool force = false;
  std::string output = "text";
};

inline constexpr int64_t kInitMinutes = 10;  ///< by default
inline constexpr int64_t kInitEvaluations = 10;
inline constexpr int64_t kInitEvaluated = 64;  ///< sequences of each

/// What the job is made of, and the numbers that follow.
struct Proposal {
  std::string name;
  api::Preset preset;
  int64_t files = 0;
  int64_t bytes = 0;
  int64_t vocabulary = 0;
  std::string tokenizer;        ///< its path, as YAML; empty: none that `sample` would have to find
  int64_t tokens = 0;           ///< to train on
  int64_t held_out_tokens = 0;  ///< 0: nothing is held out
  int64_t parameters = 0;
  int64_t length = 0;
  int64_t sequences = 0;
  int64_t micro = 0;
  int64_t ranks = 1;
  int64_t steps = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;  ///< of this machine's processors; 0: not known
  std::string not_measured;      ///< why not; empty: it was, or need not be
  bool takes_days = false;       ///< as far as that can be known without measuring
  int64_t memory_bytes = 0;      ///< of its rank, in a cluster

  int64_t step_tokens() const { return sequences * length; }
  /// As many as evaluations take the time of.
  int64_t evaluation_tokens() const;
  /// Of the run; 0: not known.
  double seconds() const;
  double epochs() const {
    return static_cast<double>(steps * step_tokens()) / static_cast<double>(tokens);
  }
};

/// The job's name, of the text.
std::string init_name_of(const std::filesystem::path& data);

/// The preset that is asked for, or that fits so many tokens. Errors: kInvalidConfig.
Result<api::Preset> init_preset_of(const InitArguments& arguments, int64_t tokens);

/// The numbers of a job for a data set. With neither --steps nor --cluster it measures this
/// machine, for some seconds. Errors: kInvalidData for too little text; those of init_preset_of().
Result<Proposal> propose(const InitArguments& arguments, const data::DatasetManifest& data);

/// "1.2k", "3.2M".
std::string si(int64_t number);

/// The text of OUT/job.yaml, with comments.
std::string init_manifest_of(const Proposal& job, bool cluster);

/// In the claim of a cluster: no job's checkpoints are in a folder of this name.
inline constexpr char kInitClaimData[] = "init.data";
/// The folder of the job's data set there.
std::string init_claim_folder(const Proposal& job);
/// The text of OUT/claim.yaml.
std::string init_claim(const Proposal& job);

}  // namespace trainyard::cli
