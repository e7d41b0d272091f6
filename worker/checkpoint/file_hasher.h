#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/hash/hash.h"
#include "worker/checkpoint/manifest.h"

namespace trainyard::checkpoint {

/// Hashes a file's bytes in their order: as a whole and by chunk.
class FileHasher {
 public:
  explicit FileHasher(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  void update(std::span<const std::byte> data);
  /// What the manifest says of the file. Called once, last.
  ShardRecord finish();

 private:
  void end_chunk();

  int64_t chunk_bytes_;
  int64_t bytes_ = 0;
  int64_t in_chunk_ = 0;
  Sha256Stream whole_;
  std::unique_ptr<Xxh3Stream> chunk_ = std::make_unique<Xxh3Stream>();
  std::vector<Hash128> chunks_;
};

}  // namespace trainyard::checkpoint
