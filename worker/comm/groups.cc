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

/// By place_of().
constexpr std::array kTracks = {trace::Track::kShardGroup,   trace::Track::kReplicaGroup,
                                trace::Track::kTiedGroup,    trace::Track::kTensorGroup,
                                trace::Track::kSlicedGroup,  trace::Track::kContextGroup,
                                trace::Track::kActivationIn, trace::Track::kActivationOut,
                                trace::Track::kGradientIn,   trace::Track::kGradientOut};

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
    return c == layout::Coordinate{c.pp, c.dp, at.fsdp, c.cp, at.tp};
  };
  const auto is_replica = [&](const layout::Coordinate& c) { return is_copy(c) && c.pp == at.pp; };
  const auto is_at_an_end = [&](const layout::Coordinate& c) {
    return c.pp == 0 || c.pp == mesh.pp - 1;
  };
  const auto is_tied = [&](const layout::Coordinate& c) { return is_copy(c) && is_at_an_end(c); };
  TRAINYARD_ASSIGN(groups.shard, group_of(world, mesh, is_shard, groups.own_[0]));
  if (mesh.tp > 1) {
    const auto is_tensor = [&](const layout::Coordinate& c) {
      return c == layout::Coordinate{at.pp, at.dp, at.fsdp, at.cp, c.tp};
    };
    TRAINYARD_ASSIGN(groups.tensor, group_of(world, mesh, is_tensor, groups.own_[3]));
  }
  if (mesh.tp > 1 && mesh.slices) {
    const auto is_sliced = [&](const layout::Coordinate& c) {
      return c == layout::Coordinate{at.pp, c.dp, at.fsdp, c.cp, c.tp};
    };
    TRAINYARD_ASSIGN(groups.sliced_, group_of(world, mesh, is_sliced, groups.own_[4]));
  }
  if (mesh.cp > 1) {
    const auto is_context = [&](const layout::Coordinate& c) {
      return c == layout::Coordinate{at.pp, at.dp, at.fsdp, c.cp, at.tp};
    };
    TRAINYARD_ASSIGN(groups.context, group_of(world, mesh, is_context, groups.own_[kContextGroup]));
  }
  if (mesh.copies() > 1) {
    TRAINYARD_ASSIGN(groups.replica_, group_of(world, mesh, is_replica, groups.own_[1]));
  }
  if (mesh.pp > 1 && is_at_an_end(at)) {
    TRAINYARD_ASSIGN(groups.tied_, group_of(world, mesh, is_tied, groups.own_[2]));
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
      const auto c = static_cast<size_t>(channel);
      TRAINYARD_ASSIGN(own_[kStateGroups + c], world->sub_group(ranks));
      channels_[c] = own_[kStateGroups + c].get();
    }
  }
  return {};
}

Groups Groups::of_data_ranks(Communicator& world) {
  return *make(world, {.fsdp = world.size()});  // makes no group, so nothing can fail
}

StepCommunicator** Groups::place_of(size_t group) {
  StepCommunicator** const of_states[] = {&shard, &replica_, &tied_, &tensor, &sliced_, &context};
  return group < kStateGroups ? of_states[group] : &channels_[group - kStateGroups];
}

Result<Groups> Groups::on_device(const OnDevice& make) const {
  Groups groups;
  groups.mesh = mesh;
  groups.at = at;
  groups.world = world;
  groups.host_ = this;
  groups.before_abort_ = before_abort_;
  StepCommunicator* const found[] = {shard, replica_, tied_, tensor, sliced_, context};
  for (size_t group = 0; group < own_.size(); ++group) {
    const bool is_world = group < kStateGroups && found[group] == world;
    Communicator* host = own_[group].get();
    if (is_world) {
      std::vector<int> everyone(static_cast<size_t>(world->size()));
      std::iota(everyone.begin(), everyone.end(), 0);
      TRAINYARD_ASSIGN(groups.own_[group], world->sub_group(everyone));
      host = groups.own_[group].get();
    }
    if (host == nullptr) continue;
    const GroupUse use = group == kContextGroup ? GroupUse::kExchanges
                         : group < kStateGroups ? GroupUse::kCollectives
                                                : GroupUse::kMessages;
    TRAINYARD_ASSIGN(groups.on_device_.emplace_back(), make(*host, use));
    *groups.place_of(group) = groups.on_device_.back().get();
    if (sink_ != nullptr) groups.on_device_.back()->observe(sink_, kTracks[group]);
  }
  return groups;
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

Result<Communicator*> Groups::across_nodes(int ranks_per_node) {
  if (own_across_nodes_) return own_across_nodes_.get();
  if (ranks_per_node < 1 || world->size() % ranks_per_node != 0) {
    return Error{ErrorCode::kInvalidConfig, "groups: found " + std::to_string(world->size()) +
                                                " ranks, wanted whole nodes of " +
                                                std::to_string(ranks_per_node)};
  }
  std::vector<int> members;
  for (int rank = world->rank() % ranks_per_node; rank < world->size(); rank += ranks_per_node)
    members.push_back(rank);
  TRAINYARD_ASSIGN(own_across_nodes_, world->sub_group(members, Waits::kApart));
  return own_across_nodes_.get();
}

std::vector<StepCommunicator*> Groups::training() const {
  std::vector<StepCommunicator*> found = {world};
  if (host_ != nullptr) {  // each speaks for the one that it is made of
    for (const auto& group : on_device_)
      found.push_back(group.get());
    return found;
  }
  for (const auto& own : own_) {
    if (own) found.push_back(own.get());
  }
  return found;
}

std::vector<StepCommunicator*> Groups::all() const {
  std::vector<StepCommunicator*> found = training();
  for (const Groups* groups : {this, host_}) {
    if (groups == nullptr) continue;
    for (const auto* own : {&groups->own_background_, &groups->own_across_nodes_}) {
      if (*own) found.push_back(own->get());
    }
  }
  return found;
}

void Groups::observe(trace::SpanSink* sink) {
  sink_ = sink;
  world->observe(sink, trace::Track::kDataGroup);
  for (size_t group = 0; group < own_.size(); ++group) {
    if (own_[group]) own_[group]->observe(sink, kTracks[group]);
  }
}

Counters Groups::counters() const {
  Counters sum;
  for (const StepCommunicator* group : training()) {
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
  for (const StepCommunicator* group : all()) {
    for (const int rank : group->lost_ranks())
      lost.insert(rank);
  }
  return {lost.begin(), lost.end()};
}

void Groups::abort(const Error& reason) const {
  if (before_abort_) before_abort_(reason);
  std::vector<int> lost;
  if (reason.code == ErrorCode::kPeerLost) lost = lost_ranks();
  for (StepCommunicator* group : all())
    group->abort(reason, lost);
}

}  // namespace trainyard::comm
