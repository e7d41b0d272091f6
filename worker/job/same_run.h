#pragma once

#include <filesystem>
#include <string>

#include "common/api/engine_spec.h"
#include "common/base/error.h"
#include "worker/checkpoint/reader.h"
#include "worker/hf/run_facts.h"
#include "worker/job/inputs.h"

namespace trainyard::engine {

/// Scalar of a checkpoint: which tokens the run has seen, in which order (TokenSet::identity,
/// hexadecimal).
inline constexpr char kDataIdentityScalar[] = "dataIdentity";

/// Whether a run of `spec` (resolved) over tokens of `data_identity` (empty: not known, not
/// compared) is the one that left this checkpoint: the steps it has done say which samples come
/// next only under the same batch and data, and they are not to be more than it has. A difference
/// is the manifest's fault, not damage: no older checkpoint would do better. Errors: kInvalidConfig
/// naming field, value and the checkpoint's, or what of the checkpoint's configuration this version
/// does not accept.
Status check_same_run(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec,
                      const std::string& data_identity);

/// What is not as expected of a run that goes on from this checkpoint: its learning rate fell over
/// another number of steps. Empty: nothing.
std::string doubt_of_horizon(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec);

/// That the checkpoint was written on another kind of device, whose sums have other bits. Empty: it
/// was not.
std::string doubt_of_device(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec);

/// Whether a run of `spec` (resolved, with startFrom) and `facts` may begin from this checkpoint:
/// State under the rule of check_same_run(), Weights where it is of the same model and its tokens
/// of the same tokenizer. Errors: kInvalidConfig naming field, value and the checkpoint's.
Status check_start(const checkpoint::StateStore& checkpoint, const api::EngineSpec& spec,
                   const std::string& data_identity, const hf::RunFacts& facts);

/// The checkpoint that startFrom names. `files` must outlive the reader. Errors: those of
/// CheckpointReader::open; kInvalidConfig for a directory of several checkpoints, naming the
/// newest.
Result<std::unique_ptr<checkpoint::CheckpointReader>> open_start(checkpoint::FileSystem& files,
                                                                 const api::StartFrom& start);

/// The same as check_same_run(), before there are ranks, of the newest checkpoint below
/// `checkpoints`. Good where there is none that can be opened: what is to be said of that the ranks
/// say. Errors: kInvalidConfig.
Status check_goes_on(const api::EngineSpec& spec, const Inputs& inputs,
                     const std::filesystem::path& checkpoints);

}  // namespace trainyard::engine
