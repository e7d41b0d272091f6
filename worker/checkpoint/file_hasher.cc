#include "worker/checkpoint/file_hasher.h"

#include <algorithm>

namespace trainyard::checkpoint {

void FileHasher::update(std::span<const std::byte> data) {
  bytes_ += static_cast<int64_t>(data.size());
  whole_.update(data);
  while (!data.empty()) {
    const auto count = std::min(data.size(), static_cast<size_t>(chunk_bytes_ - in_chunk_));
    chunk_->update(data.first(count));
    in_chunk_ += static_cast<int64_t>(count);
    data = data.subspan(count);
    if (in_chunk_ == chunk_bytes_) end_chunk();
  }
}

ShardRecord FileHasher::finish() {
  if (in_chunk_ > 0) end_chunk();
  return {bytes_, whole_.digest(), std::move(chunks_)};
}

void FileHasher::end_chunk() {
  chunks_.push_back(chunk_->digest());
  chunk_ = std::make_unique<Xxh3Stream>();
  in_chunk_ = 0;
}

}  // namespace trainyard::checkpoint
