#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/layout/mesh.h"
#include "worker/comm/communicator.h"

namespace trainyard::comm {

/// What a rank exchanges with the ranks before and after it on the pp axis.
enum class Channel : uint8_t { kActivationIn, kActivationOut, kGradientIn, kGradientOut };
inline constexpr size_t kChannels = 4;

/// What a group of a step is for: one of two ranks that a channel's messages go through, one in
/// which every rank sends to every other, or any other.
enum class GroupUse : uint8_t { kCollectives, kMessages, kExchanges };

/// Makes of a group in the memory of the host, which is not owned, one that works in the memory of
/// a device.
using OnDevice =
    std::function<Result<std::unique_ptr<StepCommunicator>>(Communicator& host, GroupUse use)>;

/// Is called with the reason of an abort.
using AbortHook = std::function<void(const Error&)>;

/// The groups in which a rank meets others, by its place on the mesh.
struct Groups {
  /// Collective over `world`, which is not owned and has mesh.size() ranks. A group of all its
  /// ranks is `world` itself. Where ranks have several stages, the last rank of the pp axis also
  /// precedes the first. Errors: kInvalidConfig for another number of ranks; those of sub_group().
  static Result<Groups> make(Communicator& world, const layout::Mesh& mesh,
                             int64_t stages_per_rank = 1);
  /// Those of a mesh on which all ranks share the states.
  static Groups of_data_ranks(Communicator& world);
  /// The same for a step on a device, made of these, which outlive them. `world`, background() and
  /// across_nodes() remain those of the host. A group of all ranks has connections of its own, as
  /// its operations have no order with those of the world. Collective over the world. Errors: those
  /// of `make` and sub_group().
  Result<Groups> on_device(const OnDevice& make) const;

  layout::Mesh mesh;
  layout::Coordinate at;
  Communicator* world = nullptr;
  /// Ranks that share the states of one copy of a stage.
  StepCommunicator* shard = nullptr;
  /// Ranks that share every layer; null: this one has all of it.
  StepCommunicator* tensor = nullptr;
  /// Ranks that share every sequence; null: this one has all positions.
  StepCommunicator* context = nullptr;

  /// The ranks that hold copies of what this one owns of a unit on `stages`, numbered as
  /// layout::Copies::index; null: it has the only one. Two stages are the first and the last, which
  /// share a table. `summed_over_tensor`: as of layout::Unit, on one stage.
  StepCommunicator* copies(std::span<const int> stages, bool summed_over_tensor = false) const {
    if (summed_over_tensor) return sliced_;
    return stages.size() > 1 ? tied_ : replica_;
  }
  /// The group of two in which a channel's messages go, alone: each has an order of its own, and
  /// waits for no other. Null where the mesh has nobody at the other end.
  StepCommunicator* channel(Channel channel) const {
    return channels_[static_cast<size_t>(channel)];
  }
  int data_ranks() const { return mesh.data_ranks(); }
  int data_rank() const { return layout::data_rank(mesh, at); }
  /// A group of all ranks for what goes on beside training, such as checkpoints. The first call,
  /// collective over the world, makes it. Errors: those of sub_group().
  Result<Communicator*> background();
  /// The ranks with this one's place on their nodes, in the order of the nodes, for what goes on
  /// beside training; each node has `ranks_per_node`. The first call, collective over the world,
  /// makes it; later ones give the same group. Errors: kInvalidConfig where the world is not made
  /// of such nodes; those of sub_group().
  Result<Communicator*> across_nodes(int ranks_per_node);
  /// Destroys that group, which nobody uses any more: ranks lost in it are not lost to training.
  void end_across_nodes() { own_across_nodes_.reset(); }

  /// Every group tells of its collectives on a track of its own; call before background(). As
  /// Communicator::observe().
  void observe(trace::SpanSink* sink);
  /// Of the groups of training together. What takes place in several groups at the same time counts
  /// in each: the times may add up to more than has passed.
  Counters counters() const;
  /// Ranks of the world that any group holds lost, see Communicator::lost_ranks().
  std::vector<int> lost_ranks() const;
  /// See Communicator::abort(), on all groups; where the reason is a loss, with lost_ranks().
  void abort(const Error& reason) const;
  /// `hook` is called with the reason of each abort() before any peer hears of it, also of groups
  /// that on_device() makes of these later.
  void before_abort(AbortHook hook) { before_abort_ = std::move(hook); }

 private:
  // Shard, replica, tied, tensor, sliced and context, of a rank.
  static constexpr size_t kStateGroups = 6;
  static constexpr size_t kContextGroup = 5;
  Status make_channels(bool joins_ends);
  StepCommunicator** place_of(size_t group);
  /// Every group of training once.
  std::vector<StepCommunicator*> training() const;
  /// Those, the background group and the one across nodes.
  std::vector<StepCommunicator*> all() const;

  trace::SpanSink* sink_ = nullptr;
  AbortHook before_abort_;               // may be empty
  const Groups* host_ = nullptr;         // of groups for a device: those that they are made of
  StepCommunicator* replica_ = nullptr;  // this stage's
  StepCommunicator* tied_ = nullptr;     // those of the first and the last stage
  StepCommunicator* sliced_ = nullptr;   // this stage's, of all tensor ranks that have slices
  std::array<StepCommunicator*, kChannels> channels_{};
  std::unique_ptr<Communicator> own_background_;
  std::unique_ptr<Communicator> own_across_nodes_;
  // In the memory of the host; null: the world itself, or none. By place_of().
  std::array<std::unique_ptr<Communicator>, kStateGroups + kChannels> own_;
  std::vector<std::unique_ptr<StepCommunicator>> on_device_;  // last: they work by those above
};

}  // namespace trainyard::comm
