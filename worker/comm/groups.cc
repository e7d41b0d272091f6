#include "worker/comm/groups.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace trainyard::comm {
namespace {

/// The group of the ranks that `belongs` holds for; made, in `own`, unless all of them are.
template <class Belongs>
Result<Communicator*> group_of(Communicator& world, const layout::Mesh& mesh,
                               const Belongs& belongs, std::unique_ptr<Communicator>& own) {
  std::vector<int> members;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    if (belongs(layout::coordinate_of(mesh, rank))) members.push_back(rank);
  }
  if (static_cast<int>(members.size()) == mesh.size()) return &world;
  TRAINYARD_ASSIGN(own, world.sub_group(members));
  return own.get();
}

}  // namespace

Result<Groups> Groups::make(Communicator& world, const layout::Mesh& mesh,
                            int64_t stages_per_rank) {
  if (world.size() != mesh.size()) {
    return Error{ErrorCode::kInvalidConfig, "groups: found " + std::to_string(world.size()) +
                                                " ranks, wanted the " +
                                                std::to_string(mesh.size()) + " of the mesh"};
  }
  Groups groups;
  groups.mesh = mesh;
  groups.at = layout::coordinate_of(mesh, world.rank());
  groups.world = &world;
  const layout::Coordinate& at = groups.at;
  const auto is_shard = [&](const layout::Coordinate& c) {
    return c == layout::Coordinate{at.pp, at.dp, c.fsdp, at.cp, at.tp};
  };
  const auto is_copy = [&](const layout::Coordinate& c) {
    return c == layout::Coordinate{c.pp, c.dp, at.fsdp, at.cp, at.tp};
  };
  const auto is_replica = [&](const layout::Coordinate& c) { return is_copy(c) && c.pp == at.pp; };
  const auto is_at_an_end = [&](const layout::Coordinate& c) {
    return c.pp == 0 || c.pp == mesh.pp - 1;
  };
  const auto is_tied = [&](const layout::Coordinate& c) { return is_copy(c) && is_at_an_end(c); };
  TRAINYARD_ASSIGN(groups.shard, group_of(world, mesh, is_shard, groups.own_shard_));
  if (mesh.dp > 1) {
    TRAINYARD_ASSIGN(groups.replica_, group_of(world, mesh, is_replica, groups.own_replica_));
  }
  if (mesh.pp > 1 && is_at_an_end(at)) {
    TRAINYARD_ASSIGN(groups.tied_, group_of(world, mesh, is_tied, groups.own_tied_));
  }
  TRAINYARD_TRY(groups.make_channels(mesh.pp > 1 && stages_per_rank > 1));
  return groups;
}

/// Pair by pair along the pipeline, so that whom one waits for to make a group waits for none that
/// comes later.
Status Groups::make_channels(bool joins_ends) {
  const int pairs = joins_ends ? mesh.pp : mesh.pp - 1;
  for (int before = 0; before < pairs; ++before) {
    const int after = (before + 1) % mesh.pp;
    if (at.pp != before && at.pp != after) continue;
    layout::Coordinate pair[] = {at, at};
    pair[0].pp = std::min(before, after);
    pair[1].pp = std::max(before, after);
    const int ranks[] = {layout::rank_of(mesh, pair[0]), layout::rank_of(mesh, pair[1])};
    const bool sends = before == at.pp;
    for (const Channel channel : {sends ? Channel::kActivationOut : Channel::kActivationIn,
                                  sends ? Channel::kGradientIn : Channel::kGradientOut}) {
      TRAINYARD_ASSIGN(channels_[static_cast<size_t>(channel)], world->sub_group(ranks));
    }
  }
  return {};
}

Groups Groups::of_data_ranks(Communicator& world) {
  return *make(world, {.fsdp = world.size()});  // makes no group, so nothing can fail
}

Result<Communicator*> Groups::background() {
  if (!own_background_) {
    std::vector<int> everyone(static_cast<size_t>(world->size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    // Another thread waits in it: that excuses nobody in the groups of training.
    TRAINYARD_ASSIGN(own_background_, world->sub_group(everyone, Waits::kApart));
    if (sink_ != nullptr) own_background_->observe(sink_, trace::Track::kCheckpointGroup);
  }
  return own_background_.get();
}

std::vector<Communicator*> Groups::training() const {
  std::vector<Communicator*> found = {world};
  for (const auto* own : {&own_shard_, &own_replica_, &own_tied_}) {
    if (*own) found.push_back(own->get());
  }
  for (const auto& channel : channels_) {
    if (channel) found.push_back(channel.get());
  }
  return found;
}

std::vector<Communicator*> Groups::all() const {
  std::vector<Communicator*> found = training();
  if (own_background_) found.push_back(own_background_.get());
  return found;
}

void Groups::observe(trace::SpanSink* sink) {
  sink_ = sink;
  world->observe(sink, trace::Track::kDataGroup);
  if (own_shard_) own_shard_->observe(sink, trace::Track::kShardGroup);
  if (own_replica_) own_replica_->observe(sink, trace::Track::kReplicaGroup);
  if (own_tied_) own_tied_->observe(sink, trace::Track::kTiedGroup);
  constexpr std::array<trace::Track, kChannels> kTracks = {
      trace::Track::kActivationIn, trace::Track::kActivationOut, trace::Track::kGradientIn,
      trace::Track::kGradientOut};
  for (size_t channel = 0; channel < kChannels; ++channel) {
    if (channels_[channel]) channels_[channel]->observe(sink, kTracks[channel]);
  }
}

Counters Groups::counters() const {
  Counters sum;
  for (const Communicator* group : training()) {
    const Counters one = group->counters();
    sum.bytes_sent += one.bytes_sent;
    sum.bytes_received += one.bytes_received;
    sum.operations += one.operations;
    for (size_t kind = 0; kind < kOperations.size(); ++kind) {
      OperationCounters& of_kind = sum.by_operation[kind];
      of_kind.operations += one.by_operation[kind].operations;
      of_kind.bytes_sent += one.by_operation[kind].bytes_sent;
      of_kind.bytes_received += one.by_operation[kind].bytes_received;
      of_kind.time += one.by_operation[kind].time;
    }
  }
  return sum;
}

std::vector<int> Groups::lost_ranks() const {
  std::set<int> lost;
  for (const Communicator* group : all()) {
    for (const int rank : group->lost_ranks())
      lost.insert(rank);
  }
  return {lost.begin(), lost.end()};
}

void Groups::abort(const Error& reason) const {
  std::vector<int> lost;
  if (reason.code == ErrorCode::kPeerLost) lost = lost_ranks();
  for (Communicator* group : all())
    group->abort(reason, lost);
}

}  // namespace trainyard::comm
