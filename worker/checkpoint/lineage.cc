#include "worker/checkpoint/lineage.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <nlohmann/json.hpp>

#include "common/text/bounded_json.h"
#include "worker/checkpoint/sealed_json.h"

namespace trainyard::checkpoint {
namespace {

constexpr size_t kStepDigits = 10;
constexpr int kDepthMax = 8;

/// A decimal number in its one canonical spelling.
std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Error lineage_error(const std::string& why) {
  return {ErrorCode::kInvalidData, "lineage record: " + why};
}

}  // namespace

std::string directory_name(const CheckpointId& id) {
  std::string step = std::to_string(id.step);
  if (step.size() < kStepDigits) step.insert(0, kStepDigits - step.size(), '0');
  return "g" + std::to_string(id.generation) + "-step-" + step;
}

std::optional<CheckpointId> parse_directory_name(std::string_view name) {
  const size_t dash = name.find("-step-");
  if (name.empty() || name[0] != 'g' || dash == std::string_view::npos) return std::nullopt;
  const std::optional<int64_t> generation = parse_number(name.substr(1, dash - 1));
  const std::optional<int64_t> step = parse_number(name.substr(dash + 6));
  if (!generation || !step) return std::nullopt;
  const CheckpointId id{*generation, *step};
  if (directory_name(id) != name) return std::nullopt;  // leading zeros, signs, wrong padding
  return id;
}

std::string encode(const LineageRecord& record) {
  nlohmann::ordered_json json;
  json["format"] = "trainyard-lineage";
  json["version"] = 1;
  json["jobUid"] = record.job_uid;
  json["generation"] = record.generation;
  if (record.parent_generation) {
    json["parentGeneration"] = *record.parent_generation;
  } else {
    json["parentGeneration"] = nullptr;
  }
  json["forkStep"] = record.fork_step;
  if (!record.branch_id.empty()) json["branchId"] = record.branch_id;
  return seal_json(json.dump(1, ' ', true, nlohmann::json::error_handler_t::replace));
}

Result<LineageRecord> decode_lineage(std::string_view text) {
  TRAINYARD_TRY(check_seal(text, "lineage record"));
  const auto json = parse_bounded_json<nlohmann::json>(text, kDepthMax).value_or(nlohmann::json());
  if (!json.is_object()) return lineage_error("not a JSON object");
  if (json.value("format", nlohmann::json()) != "trainyard-lineage" ||
      json.value("version", nlohmann::json()) != 1) {
    return lineage_error("format is not trainyard-lineage version 1");
  }
  const auto number = [&](const char* key) -> std::optional<int64_t> {
    const auto found = json.find(key);
    if (found == json.end() || !found->is_number_integer()) return std::nullopt;
    // Read as unsigned first: a value above int64 would wrap.
    if (found->is_number_unsigned() &&
        found->get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return std::nullopt;
    }
    return found->get<int64_t>();
  };
  LineageRecord record;
  const auto uid = json.find("jobUid");
  if (uid == json.end() || !uid->is_string()) return lineage_error("jobUid is not a string");
  record.job_uid = uid->get<std::string>();
  const std::optional<int64_t> generation = number("generation");
  if (!generation || *generation < 0) return lineage_error("generation is not a number >= 0");
  record.generation = *generation;
  const auto parent = json.find("parentGeneration");
  if (parent == json.end()) return lineage_error("parentGeneration is missing");
  if (!parent->is_null()) {
    const std::optional<int64_t> value = number("parentGeneration");
    if (!value || *value < 0 || *value >= record.generation) {
      return lineage_error("parentGeneration must be a number below the generation");
    }
    record.parent_generation = *value;
  }
  const std::optional<int64_t> fork = number("forkStep");
  if (!fork || *fork < kFromScratch) return lineage_error("forkStep is not a number >= -1");
  record.fork_step = *fork;
  if (const auto branch = json.find("branchId"); branch != json.end()) {
    if (!branch->is_string()) return lineage_error("branchId is not a string");
    record.branch_id = branch->get<std::string>();
  }
  return record;
}

Result<Lineage> Lineage::of(int64_t generation, const LineageRecords& records) {
  Lineage lineage;
  int64_t last_step = std::numeric_limits<int64_t>::max();
  auto found = records.find(generation);
  while (found != records.end()) {
    const LineageRecord& record = found->second;
    lineage.last_step_[record.generation] = last_step;
    if (!record.parent_generation) break;
    if (*record.parent_generation >= record.generation) {
      return lineage_error("generation " + std::to_string(record.generation) + " names parent " +
                           std::to_string(*record.parent_generation) + ", which is not older");
    }
    last_step = std::min(last_step, record.fork_step);
    found = records.find(*record.parent_generation);
  }
  return lineage;
}

bool Lineage::accepts(const CheckpointId& id) const {
  const auto found = last_step_.find(id.generation);
  return found != last_step_.end() && id.step <= found->second;
}

std::optional<int64_t> newest_recorded(const LineageRecords& records, int64_t hint) {
  const auto above = records.upper_bound(hint);
  if (above == records.begin()) return std::nullopt;
  return std::prev(above)->first;
}

}  // namespace trainyard::checkpoint
