#include "worker/rank/rank_memory.h"

#include <algorithm>
#include <sys/stat.h>
#include <vector>

#include "common/io/memory_facts.h"

namespace trainyard::engine {
namespace {

/// Memory of a memory file; 0 where that is not known.
int64_t allocated_bytes(int fd) {
  constexpr int64_t kBlockBytes = 512;  // stat(2)
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_blocks * kBlockBytes : 0;
}

}  // namespace

bool keeps_states(const TrainContext& context) {
  return context.memory_fd >= 0 && context.checkpoint_policy.memory_every_steps != 0;
}

int ranks_with_copies(const TrainContext& context) {
  const api::CheckpointPolicy& policy = context.checkpoint_policy;
  const int world = context.groups->world->size();
  const int local = context.local_world_size;
  const bool whole_nodes = local >= 1 && local < world && world % local == 0;
  const bool wanted = policy.memory_replicas > 0 && policy.memory_every_steps != 0;
  return wanted && whole_nodes ? local : 0;
}

MemoryRoom room_for_ranks(const TrainContext& context, int64_t local) {
  MemoryRoom room = memory_room(local);
  if (!keeps_states(context)) return room;
  room.bytes = std::min(room.limit_bytes, room.bytes + local * allocated_bytes(context.memory_fd));
  return room;
}

Result<std::optional<contract::PeakMemory>> peak_memory(comm::Communicator& world,
                                                        const MemoryPlan& plan) {
  std::vector<int64_t> measured(static_cast<size_t>(world.size()), 0);
  measured[static_cast<size_t>(world.rank())] = peak_own_memory().value_or(0);
  TRAINYARD_TRY(world
                    .all_gather(std::as_writable_bytes(std::span(measured)),
                                std::vector<int64_t>(measured.size(), 1), DType::kInt64)
                    ->wait());
  const auto most = std::max_element(measured.begin(), measured.end());
  if (*most == 0) return std::optional<contract::PeakMemory>();
  const auto rank = static_cast<size_t>(most - measured.begin());
  return std::optional(contract::PeakMemory{.rank = static_cast<int>(rank),
                                            .planned_bytes = plan.own_bytes(static_cast<int>(rank)),
                                            .measured_bytes = *most});
}

}  // namespace trainyard::engine
