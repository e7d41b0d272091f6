#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace trainyard {

/// NVIDIA GPUs that this machine or container has: the kernel's files `nvidia0`, `nvidia1` ... in
/// `folder`. A container has those that were given to it. 0 where there are none.
int count_gpu_files(const std::filesystem::path& folder = "/dev");

/// The same for a program that is started with this CUDA_VISIBLE_DEVICES (nullopt: none): at most
/// as many as it lists, before the first that is no GPU's number or name ("-1").
int count_visible_gpus(int gpus, const std::optional<std::string>& visible);

/// Those of this machine that CUDA_VISIBLE_DEVICES of the environment leaves.
int count_visible_gpus();

}  // namespace trainyard
