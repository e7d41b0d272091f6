#pragma once

#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/lineage.h"

/// Which state in memory a generation can go on from: pure.
namespace trainyard::checkpoint {

/// A state that a rank has in memory (MemorySlots), as it offers it to the generation that begins.
struct MemoryOffer {
  CheckpointId id;
  std::string branch_id;  ///< of the generation that made it
  bool operator==(const MemoryOffer&) const = default;
};

/// What one rank can give to the generation that begins.
struct RankOffers {
  std::vector<MemoryOffer> own;   ///< in its memory
  int ward = -1;                  ///< the rank whose copies it keeps; -1: of none
  std::vector<MemoryOffer> kept;  ///< copies of the ward's states
};

/// One rank's offers as text for rank 0, and back. Errors: kInternal, as peers run the same
/// program.
std::string encode(const RankOffers& offers);
Result<RankOffers> decode_offers(const std::string& text);

/// The states that every rank, or the keeper of its copies, offers and that belong to `history`,
/// whose records are `records`; newest first.
std::vector<CheckpointId> common_states(const std::vector<RankOffers>& by_rank,
                                        const Lineage& history, const LineageRecords& records);

/// Those of common_states() that every rank has itself and that its keeper has a copy of: any one
/// node can be lost.
std::vector<CheckpointId> states_with_copies(const std::vector<RankOffers>& by_rank,
                                             const Lineage& history, const LineageRecords& records);

}  // namespace trainyard::checkpoint
