#pragma once

// The tensors of a safetensors file, to be changed and written again.

#include <cstddef>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker/safetensors/safetensors.h"

namespace trainyard::hf {

struct Stored {
  safetensors::TensorInfo info;
  std::vector<std::byte> data;
};
using StoredTensors = std::map<std::string, Stored>;

inline StoredTensors read_tensors(const std::filesystem::path& path) {
  StoredTensors tensors;
  const auto file = safetensors::File::open(path);
  if (!file) throw std::runtime_error(file.error().message);
  for (const safetensors::Entry& entry : file->header().entries) {
    const auto data = file->data(entry);
    tensors[entry.name] = {{entry.name, entry.dtype.value(), entry.shape},
                           {data.begin(), data.end()}};
  }
  return tensors;
}

inline void write_tensors(const std::filesystem::path& path, const StoredTensors& tensors) {
  std::vector<safetensors::TensorInfo> infos;
  std::vector<const Stored*> stored;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, tensor.info.dtype, tensor.info.shape});
    stored.push_back(&tensor);
  }
  const Status status = safetensors::write_file(
      path, infos, {{"format", "pt"}},
      [&](size_t i, const safetensors::WriteAt& write) { return write(0, stored[i]->data); });
  if (!status) throw std::runtime_error(status.error().message);
}

}  // namespace trainyard::hf
