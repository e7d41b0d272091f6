#include "worker/checkpoint/memory_offers.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "worker/checkpoint/json_fields.h"

namespace trainyard::checkpoint {

namespace {

constexpr int64_t kSlotsMax = 64;

Json to_json(const std::vector<MemoryOffer>& offers) {
  Json list = Json::array();
  for (const MemoryOffer& offer : offers) {
    list.push_back({{"generation", offer.id.generation},
                    {"step", offer.id.step},
                    {"branchId", offer.branch_id}});
  }
  return list;
}

std::optional<std::vector<MemoryOffer>> from_json(const Json& object, const char* name) {
  const auto list = array_member(object, name, "", kSlotsMax);
  if (!list) return std::nullopt;
  std::vector<MemoryOffer> offers;
  for (const Json& item : **list) {
    if (!item.is_object()) return std::nullopt;
    const auto generation = integer_member(item, "generation", "", 0);
    const auto step = integer_member(item, "step", "", 0);
    const auto branch = string_member(item, "branchId", "");
    if (!generation || !step || !branch) return std::nullopt;
    offers.push_back({{*generation, *step}, *branch});
  }
  return offers;
}

bool is_in(const std::vector<MemoryOffer>& offers, const MemoryOffer& offer) {
  return std::find(offers.begin(), offers.end(), offer) != offers.end();
}

}  // namespace

std::string encode(const RankOffers& offers) {
  return Json{{"own", to_json(offers.own)}, {"ward", offers.ward}, {"kept", to_json(offers.kept)}}
      .dump();
}

Result<RankOffers> decode_offers(const std::string& text) {
  const Json json = parse_bounded_json<Json>(text, kReportDepthMax).value_or(Json());
  const Error bug{ErrorCode::kInternal, "a rank sent offers that cannot be read: " + text};
  if (!json.is_object()) return bug;
  auto own = from_json(json, "own");
  auto kept = from_json(json, "kept");
  const auto ward = integer_member(json, "ward", "", -1, std::numeric_limits<int>::max());
  if (!own || !kept || !ward) return bug;
  return RankOffers{*std::move(own), static_cast<int>(*ward), *std::move(kept)};
}

std::vector<CheckpointId> common_states(const std::vector<RankOffers>& by_rank,
                                        const Lineage& history, const LineageRecords& records) {
  std::vector<std::vector<MemoryOffer>> there;
  there.reserve(by_rank.size());
  for (const RankOffers& rank : by_rank)
    there.push_back(rank.own);
  for (const RankOffers& keeper : by_rank) {
    if (keeper.ward < 0 || keeper.ward >= std::ssize(there)) continue;
    std::vector<MemoryOffer>& of_ward = there[static_cast<size_t>(keeper.ward)];
    of_ward.insert(of_ward.end(), keeper.kept.begin(), keeper.kept.end());
  }
  std::vector<CheckpointId> common;
  if (there.empty()) return common;
  for (const MemoryOffer& offer : there.front()) {
    const auto record = records.find(offer.id.generation);
    const bool ours = history.accepts(offer.id) && record != records.end() &&
                      record->second.branch_id == offer.branch_id;
    const bool everywhere = std::all_of(there.begin(), there.end(),
                                        [&](const auto& offers) { return is_in(offers, offer); });
    const bool known = std::find(common.begin(), common.end(), offer.id) != common.end();
    if (ours && everywhere && !known) common.push_back(offer.id);
  }
  std::sort(common.begin(), common.end(), [](const CheckpointId& a, const CheckpointId& b) {
    return std::pair(a.step, a.generation) > std::pair(b.step, b.generation);
  });
  return common;
}

std::vector<CheckpointId> states_with_copies(const std::vector<RankOffers>& by_rank,
                                             const Lineage& history,
                                             const LineageRecords& records) {
  std::vector<RankOffers> own = by_rank;
  std::vector<RankOffers> copies = by_rank;
  for (RankOffers& rank : own)
    rank.ward = -1;
  for (RankOffers& rank : copies)
    rank.own.clear();
  std::vector<CheckpointId> found = common_states(own, history, records);
  const std::vector<CheckpointId> copied = common_states(copies, history, records);
  std::erase_if(found, [&](const CheckpointId& id) {
    return std::find(copied.begin(), copied.end(), id) == copied.end();
  });
  return found;
}

}  // namespace trainyard::checkpoint
