#pragma once

#include <filesystem>

#include "common/api/engine_spec.h"

/// A manifest's paths are stored absolute, and a run may be moved or copied with all it names, to
/// another machine too. What a path leads to counts, not how it is written.
namespace trainyard::control::local {

/// Whether `wanted` names what `stored` named when the job was stored: they are equal or lead to
/// the same file, or the folder around it and `run_dir` has been moved or copied with both.
bool is_same_place(const std::filesystem::path& stored, const std::filesystem::path& wanted,
                   const std::filesystem::path& run_dir);

/// `wanted` with the stored path wherever is_same_place() holds.
api::EngineSpec with_stored_paths(const api::EngineSpec& stored, api::EngineSpec wanted,
                                  const std::filesystem::path& run_dir);

/// Whether an import may be the stored one: is_same_place(), or one of the two is gone, so that
/// only checkpoints can tell, or the folders hold the same model files. Reads both where that is
/// the only way to know.
bool may_be_same_import(const std::filesystem::path& stored, const std::filesystem::path& wanted,
                        const std::filesystem::path& run_dir);

}  // namespace trainyard::control::local
