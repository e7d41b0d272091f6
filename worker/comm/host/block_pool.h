#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

namespace trainyard::comm {

/// Memory for objects of one size that come and go all the time: what was given back is handed out
/// again, so that only a new high-water mark takes memory from the heap. Thread-safe.
class BlockPool {
 public:
  BlockPool() = default;
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Memory for `bytes`, aligned as operator new does. Of the size asked for first, blocks are
  /// kept; any other comes from the heap and goes back to it.
  void* take(size_t bytes);
  void give(void* block, size_t bytes) noexcept;

 private:
  struct Free {
    Free* next;
  };
  bool is_kept(size_t bytes) const { return bytes == block_bytes_ && bytes >= sizeof(Free); }

  std::mutex mutex_;
  size_t block_bytes_ = 0;  ///< 0: nothing was asked for yet
  Free* free_ = nullptr;
};

/// An allocator over a pool, for std::allocate_shared; the last block given back ends the pool.
template <class T>
class PoolAllocator {
 public:
  using value_type = T;

  explicit PoolAllocator(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
  template <class U>
  PoolAllocator(const PoolAllocator<U>& other) : pool_(other.pool()) {}  // NOLINT: a rebind

  T* allocate(size_t count) { return static_cast<T*>(pool_->take(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) noexcept { pool_->give(memory, count * sizeof(T)); }

  const std::shared_ptr<BlockPool>& pool() const { return pool_; }
  template <class U>
  bool operator==(const PoolAllocator<U>& other) const {
    return pool_ == other.pool();
  }

 private:
  std::shared_ptr<BlockPool> pool_;
};

}  // namespace trainyard::comm
