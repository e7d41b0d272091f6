#include "worker/comm/host/block_pool.h"

#include <new>

namespace trainyard::comm {

BlockPool::~BlockPool() {
  while (free_ != nullptr)
    ::operator delete(std::exchange(free_, free_->next));
}

void* BlockPool::take(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (block_bytes_ == 0) block_bytes_ = bytes;
    if (is_kept(bytes) && free_ != nullptr) return std::exchange(free_, free_->next);
  }
  return ::operator new(bytes);
}

void BlockPool::give(void* block, size_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_kept(bytes)) {
      free_ = ::new (block) Free{free_};
      return;
    }
  }
  ::operator delete(block);
}

}  // namespace trainyard::comm
