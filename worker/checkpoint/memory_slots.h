#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/lineage.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/memory_offers.h"
#include "worker/checkpoint/slot_region.h"
#include "worker/checkpoint/state_store.h"

namespace trainyard::checkpoint {

/// One rectangle of a float32 tensor that a rank holds.
struct StatePart {
  std::string name;
  TensorKind kind = TensorKind::kParameter;
  std::vector<int64_t> global_shape;
  Rectangle where;
};

/// Of the states of one rank: their size, and a hash of what they are made of and whose they are.
struct SlotShape {
  int64_t data_bytes = 0;
  Hash128 layout;
};

/// `parts` lie one after the other; `owner`: job, rank and number of ranks.
SlotShape shape_of(const std::vector<StatePart>& parts, const std::string& owner);

/// A complete state as it travels between ranks. Points into a slot.
struct PackedState {
  std::string_view description;
  std::span<const std::byte> data;
};

/// The newest states of one rank, in a memory file that outlives the rank's process: the agent
/// holds its descriptor. Three slots of equal size take turns. A state is copied into one that
/// neither holds the newest state nor is being read by the disk, so that two states are complete
/// whenever a rank may be killed while another is a step ahead.
/// docs/concepts/restarts.md, "State in memory".
///
/// The file may also hold copies of another rank's states: of this one's ward, a rank of the node
/// before. A state that is being sent, and the one that all ranks have sent whole before it, are
/// not overwritten: a pod that is lost meanwhile leaves one that every rank, or its keeper, has.
///
/// Not thread-safe, but that copies of the ward may be received by a thread of their own, and that
/// hold() may be released by any thread.
class MemorySlots {
 public:
  static constexpr int kSlots = 3;
  static constexpr int kWardSlots = 2;  ///< the copy that all have, and the one that is received

  /// Maps the file behind `fd`, which stays the caller's. `parts`: what each slot holds, one after
  /// the other; `owner`: see shape_of(); `ward`: of the rank whose copies are kept here, nullopt:
  /// of none. What was made of other parts or for another owner is thrown away. Errors: kIo, naming
  /// the call.
  static Result<std::unique_ptr<MemorySlots>> map(int fd, std::vector<StatePart> parts,
                                                  std::string owner,
                                                  const std::optional<SlotShape>& ward = {});
  /// Bytes of the file for parts of `data_bytes` together, and of a ward's.
  static int64_t file_bytes(int64_t data_bytes, std::optional<int64_t> ward_bytes = {});

  /// Complete states, newest first. Their data have not been looked at.
  std::vector<MemoryOffer> offers() const { return own_.offers(); }

  /// A slot for the next state, whose data the caller writes: the state that it held is gone.
  /// Errors: kUnavailable where the disk reads from all others.
  Result<std::span<std::byte>> begin();
  /// What begin() gave is whole: hashes it and makes it the newest. Of `head` the identity, step,
  /// configuration and scalars count. Cost: reads the data once. Errors: those of encode();
  /// kUnavailable where `head` is longer than a slot has room for.
  Status complete(Manifest head);
  /// What begin() gave is the state `id` of this rank, which another rank has kept. It is not the
  /// newest before open(). Errors: kInvalidData where `description` is not of that state.
  Status complete_with(const CheckpointId& id, std::string_view description);
  /// Data of the newest state that this has made or opened.
  std::span<const std::byte> newest() const;
  /// Keeps the newest state's data from being overwritten, and mapped, until it is released.
  std::shared_ptr<const void> hold() const;
  /// Whether the disk reads from any slot.
  bool held() const;

  /// Memory of a slot's data.
  std::span<std::byte> data(int slot) const { return own_.data(slot); }

  /// A complete state, which becomes the newest: the others may be overwritten. It must not outlive
  /// this. Errors: kNotFound; kInvalidData where its bytes are not those that were hashed.
  Result<std::unique_ptr<StateStore>> open(const CheckpointId& id);

  bool has_ward() const { return ward_.has_value(); }
  int64_t ward_bytes() const { return ward_ ? ward_->data_bytes() : 0; }
  /// The newest state, for its keeper: it stays as it is until settle().
  PackedState lend();
  /// Nobody sends any more. `everywhere`: what was lent, and what was received meanwhile, is whole
  /// on all ranks, and stays until the next one is.
  void settle(bool everywhere);
  /// Every rank has the state `id`, and a copy of it of its ward: both stay until a later state is
  /// everywhere. Call after open().
  void keep_copied(const CheckpointId& id);
  /// Copies are no longer made: no state stays for their sake.
  void forget_copies();

  /// Copies of the ward's states, newest first.
  std::vector<MemoryOffer> ward_offers() const;
  std::optional<PackedState> ward_state(const CheckpointId& id) const;
  /// A slot for the ward's next state.
  std::span<std::byte> begin_ward();
  /// What begin_ward() gave is whole: compares it with its hash. Cost: reads the data once. Errors:
  /// kInvalidData where its bytes are not those that were hashed, or where it is not of the job and
  /// step of `expected`, which describes this rank's state of the round; kUnavailable where the
  /// description does not fit. The slot then stays empty.
  Status complete_ward(std::string_view description, std::string_view expected);
  /// Memory of a slot of the ward.
  std::span<std::byte> ward_data(int slot) const { return ward_->data(slot); }

 private:
  class Mapping;
  class State;
  MemorySlots(std::shared_ptr<Mapping> mapping, SlotRegion own, std::optional<SlotRegion> ward,
              std::vector<StatePart> parts, std::string owner);
  bool may_overwrite(int slot) const;

  std::shared_ptr<Mapping> mapping_;
  SlotRegion own_;
  std::optional<SlotRegion> ward_;
  std::vector<StatePart> parts_;
  std::vector<int64_t> offsets_;                                               ///< of parts_, bytes
  std::map<std::pair<std::string, TensorKind>, std::vector<size_t>> by_name_;  ///< into parts_
  std::string owner_;
  std::array<std::shared_ptr<int>, kSlots> in_use_;  ///< shared with whoever reads
  std::optional<int> newest_;
  std::optional<int> begun_;
  std::optional<int> verified_;  ///< its bytes are those that were hashed
  std::optional<int> lent_;
  std::optional<int> kept_;  ///< all ranks have sent it whole
  std::optional<int> ward_begun_;
  std::optional<int> ward_newest_;
  std::optional<int> ward_kept_;
};

}  // namespace trainyard::checkpoint
