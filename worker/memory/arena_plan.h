#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainyard::engine {

/// A buffer with a lifetime in a linear order of events, both ends inclusive.
struct BufferRequest {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
};

struct ArenaPlan {
  /// By buffer, multiples of kArenaAlignment; 0 where it is empty or was never alive.
  std::vector<int64_t> offsets;
  int64_t total_bytes = 0;
  int64_t live_bytes_max = 0;  ///< the lower bound: most bytes alive at one time
};

inline constexpr int64_t kArenaAlignment = 64;

constexpr int64_t arena_aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

/// Gives each buffer one place, such that no two that are ever alive together overlap. A buffer may
/// live several times. Cost: in proportion to the lives and to what is alive at each beginning.
class ArenaPlanner {
 public:
  /// A buffer that is not alive yet; returns its number, counted from 0.
  int add(int64_t bytes);
  /// From now on it is alive; nothing changes where it is already.
  void begin(int buffer);
  /// CHECKs that it is alive. What begins from now on may lie in its place.
  void end(int buffer);
  bool is_alive(int buffer) const { return buffers_[static_cast<size_t>(buffer)].alive; }
  /// Time passes: lives are counted in these.
  void tick() { ++now_; }
  /// Most bytes alive at one time so far: no plan has less.
  int64_t live_bytes_max() const { return live_bytes_max_; }

  /// Each buffer at the lowest offset that fits, in the best of three orders (greedy by size, by
  /// lifetime, by their product; Pisarchyk & Lee 2020), each of them improved a few times by
  /// placing first what lay highest.
  ArenaPlan plan() const;

 private:
  struct Buffer {
    int64_t bytes = 0;
    bool alive = false;
    int64_t begun = 0;
    int64_t life = 0;
    std::vector<int> neighbours;  // alive at the same time, maybe twice
  };
  ArenaPlan place(const std::vector<int>& order) const;

  std::vector<Buffer> buffers_;
  std::vector<int> alive_;
  int64_t now_ = 0;
  int64_t live_bytes_ = 0;
  int64_t live_bytes_max_ = 0;
};

/// The plan of buffers that live once. Pure.
ArenaPlan plan_arena(const std::vector<BufferRequest>& requests);

}  // namespace trainyard::engine
