#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/error.h"
#include "common/layout/mesh.h"
#include "worker/comm/communicator.h"

namespace trainyard::comm {

/// What a rank exchanges with the ranks before and after it on the pp axis.
enum class Channel : uint8_t { kActivationIn, kActivationOut, kGradientIn, kGradientOut };
inline constexpr size_t kChannels = 4;

/// The groups in which a rank meets others, by its place on the mesh.
struct Groups {
  /// Collective over `world`, which is not owned and has mesh.size() ranks. A group of all its
  /// ranks is `world` itself. Where ranks have several stages, the last rank of the pp axis also
  /// precedes the first. Errors: kInvalidConfig for another number of ranks; those of sub_group().
  static Result<Groups> make(Communicator& world, const layout::Mesh& mesh,
                             int64_t stages_per_rank = 1);
  /// Those of a mesh on which all ranks share the states.
  static Groups of_data_ranks(Communicator& world);

  layout::Mesh mesh;
  layout::Coordinate at;
  Communicator* world = nullptr;
  /// Ranks that share the states of one copy of a stage.
  Communicator* shard = nullptr;

  /// The ranks that hold copies of what this one owns of a unit on `stages`, numbered as
  /// layout::Copies::index; null: it has the only one. Two stages are the first and the last, which
  /// share a table.
  Communicator* copies(std::span<const int> stages) const {
    return stages.size() > 1 ? tied_ : replica_;
  }
  /// The group of two in which a channel's messages go, alone: each has an order of its own, and
  /// waits for no other. Null where the mesh has nobody at the other end.
  Communicator* channel(Channel channel) const {
    return channels_[static_cast<size_t>(channel)].get();
  }
  int data_ranks() const { return mesh.data_ranks(); }
  int data_rank() const { return layout::data_rank(mesh, at); }
  /// A group of all ranks for what goes on beside training, such as checkpoints. The first call,
  /// collective over the world, makes it. Errors: those of sub_group().
  Result<Communicator*> background();

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

 private:
  Status make_channels(bool joins_ends);
  /// Every group of training once.
  std::vector<Communicator*> training() const;
  /// Those and the background group.
  std::vector<Communicator*> all() const;

  trace::SpanSink* sink_ = nullptr;
  Communicator* replica_ = nullptr;  // this stage's
  Communicator* tied_ = nullptr;     // those of the first and the last stage
  std::unique_ptr<Communicator> own_background_;
  std::unique_ptr<Communicator> own_shard_;
  std::unique_ptr<Communicator> own_replica_;
  std::unique_ptr<Communicator> own_tied_;
  std::array<std::unique_ptr<Communicator>, kChannels> channels_;
};

}  // namespace trainyard::comm
