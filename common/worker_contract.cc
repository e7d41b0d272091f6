#include "common/worker_contract.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include <nlohmann/json.hpp>

#include "common/hash/hash.h"

namespace trainyard::contract {
namespace {

using Json = nlohmann::json;

/// One line of JSON; bytes that are no UTF-8 become U+FFFD, because a message must never be lost
/// over a strange byte in an error text.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// JSON has no NaN and no infinity: both travel as null.
Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Error bad(std::string_view member, std::string_view wanted, const Json* found) {
  std::string message = "message member \"" + std::string(member) + "\": ";
  message += found == nullptr ? std::string("missing") : "found " + std::string(found->type_name());
  return {ErrorCode::kInvalidData, message + ", wanted " + std::string(wanted)};
}

Result<Json> parse(const std::string& line) {
  if (static_cast<int64_t>(line.size()) > kMaxMessageBytes) {
    return Error{ErrorCode::kInvalidData, "message of " + std::to_string(line.size()) +
                                              " bytes, wanted at most " +
                                              std::to_string(kMaxMessageBytes)};
  }
  Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return Error{ErrorCode::kInvalidData,
                 "message is not a JSON object: \"" + line.substr(0, 80) + "\""};
  }
  return json;
}

const Json* find(const Json& object, const char* member) {
  const auto it = object.find(member);
  return it == object.end() ? nullptr : &*it;
}

Result<std::string> string_member(const Json& object, const char* member) {
  const Json* found = find(object, member);
  if (found == nullptr || !found->is_string()) return bad(member, "a string", found);
  return found->get<std::string>();
}

Result<int64_t> integer_member(const Json& object, const char* member, int64_t min, int64_t max) {
  const std::string wanted = "an integer of " + std::to_string(min) + " to " + std::to_string(max);
  const Json* found = find(object, member);
  if (found == nullptr || !found->is_number_integer()) return bad(member, wanted, found);
  const bool too_large =
      found->is_number_unsigned() &&
      found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t value = too_large ? 0 : found->get<int64_t>();
  if (too_large || value < min || value > max) {
    return Error{ErrorCode::kInvalidData, "message member \"" + std::string(member) + "\": found " +
                                              found->dump() + ", wanted " + wanted};
  }
  return value;
}

Result<int> int_member(const Json& object, const char* member, int min) {
  TRAINYARD_ASSIGN(const int64_t value,
                   integer_member(object, member, min, std::numeric_limits<int>::max()));
  return static_cast<int>(value);
}

Result<double> number_member(const Json& object, const char* member) {
  const Json* found = find(object, member);
  if (found != nullptr && found->is_null()) return std::numeric_limits<double>::quiet_NaN();
  if (found == nullptr || !found->is_number()) return bad(member, "a number or null", found);
  return found->get<double>();
}

/// Parses a line whose "type" must be `type`.
Result<Json> parse_typed(const std::string& line, std::string_view type) {
  TRAINYARD_ASSIGN(Json json, parse(line));
  TRAINYARD_ASSIGN(const std::string found, string_member(json, "type"));
  if (found != type) {
    return Error{ErrorCode::kInvalidData,
                 "message type: found \"" + found + "\", wanted \"" + std::string(type) + "\""};
  }
  return json;
}

constexpr int64_t kMaxExitCode = 255;
constexpr int64_t kMaxGeneration = std::numeric_limits<int64_t>::max();

Result<RankEntry> decode_entry(const Json& json, size_t index) {
  const std::string where = "ranks[" + std::to_string(index) + "]";
  if (!json.is_object()) return bad(where, "an object", &json);
  RankEntry entry;
  auto rank = int_member(json, "rank", 0);
  if (!rank) return rank.error().with_context(where);
  auto node_index = int_member(json, "nodeIndex", 0);
  if (!node_index) return node_index.error().with_context(where);
  auto host_id = string_member(json, "hostId");
  if (!host_id) return host_id.error().with_context(where);
  auto address = string_member(json, "address");
  if (!address) return address.error().with_context(where);
  if (*rank != static_cast<int>(index)) {
    return Error{ErrorCode::kInvalidData, where + ": found rank " + std::to_string(*rank) +
                                              ", wanted ranks in ascending order from 0"};
  }
  entry.rank = *rank;
  entry.node_index = *node_index;
  entry.host_id = *std::move(host_id);
  entry.address = *std::move(address);
  return entry;
}

Result<ResumePlan> decode_resume(const Json& object) {
  const Json* found = find(object, "resume");
  if (found == nullptr || !found->is_object()) return bad("resume", "an object", found);
  ResumePlan plan;
  TRAINYARD_ASSIGN(plan.generation, integer_member(*found, "generation", 0, kMaxGeneration));
  const Json* parent = find(*found, "parentGeneration");
  if (parent != nullptr && !parent->is_null()) {
    TRAINYARD_ASSIGN(plan.parent_generation,
                     integer_member(*found, "parentGeneration", 0, kMaxGeneration));
  }
  const Json* committed = find(*found, "committedStep");
  if (committed != nullptr && !committed->is_null()) {
    TRAINYARD_ASSIGN(plan.committed_step,
                     integer_member(*found, "committedStep", 0, kMaxGeneration));
  }
  return plan;
}

/// The text is a secret: errors do not repeat it.
Result<std::vector<std::byte>> bytes_of_hex(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    uint8_t value = 0;
    const char* at = text.data() + 2 * i;
    if (const auto [end, error] = std::from_chars(at, at + 2, value, 16);
        error != std::errc() || end != at + 2) {
      bytes.clear();
      break;
    }
    bytes[i] = std::byte{value};
  }
  if (bytes.empty() || text.size() % 2 != 0) {
    return Error{ErrorCode::kInvalidData, "message member \"key\": found " +
                                              std::to_string(text.size()) +
                                              " characters, wanted pairs of hexadecimal digits"};
  }
  return bytes;
}

}  // namespace

std::string encode(const Listening& message) {
  return line_of({{"type", "listening"}, {"address", message.address}});
}

std::string encode(const Start& message) {
  Json ranks = Json::array();
  for (const RankEntry& entry : message.ranks) {
    ranks.push_back({{"rank", entry.rank},
                     {"nodeIndex", entry.node_index},
                     {"hostId", entry.host_id},
                     {"address", entry.address}});
  }
  Json resume = {{"generation", message.resume.generation}};
  if (message.resume.parent_generation) {
    resume["parentGeneration"] = *message.resume.parent_generation;
  }
  if (message.resume.committed_step) resume["committedStep"] = *message.resume.committed_step;
  Json json = {{"type", "start"},
               {"generation", message.generation},
               {"ranks", std::move(ranks)},
               {"resume", std::move(resume)}};
  if (!message.key.empty()) {
    json["key"] =
        to_hex({reinterpret_cast<const uint8_t*>(message.key.data()), message.key.size()});
  }
  return line_of(json);
}

std::string encode(const Stop&) { return line_of({{"type", "stop"}}); }

std::string encode(const DumpStacks&) { return line_of({{"type", "dumpStacks"}}); }

std::string encode(const PeerLost& message) {
  return line_of({{"type", "peerLost"}, {"rank", message.rank}, {"message", message.message}});
}

std::string encode(const Failing& message) {
  return line_of(
      {{"type", "failing"}, {"exitCode", message.exit_code}, {"message", message.message}});
}

std::string encode(const AskedToEnd& /*message*/) { return line_of({{"type", "askedToEnd"}}); }

std::string encode(const Warning& message) {
  return line_of({{"type", "warning"}, {"message", message.message}});
}

std::string encode(const RunResult& message) {
  Json json = {{"type", "result"},
               {"stateHash", message.state_hash},
               {"step", message.step},
               {"skippedSteps", message.skipped_steps},
               {"finalLoss", number_or_null(message.final_loss)},
               {"validationLoss", number_or_null(message.validation_loss)}};
  if (message.peak_memory) {
    json["peakMemory"] = {{"rank", message.peak_memory->rank},
                          {"plannedBytes", message.peak_memory->planned_bytes},
                          {"measuredBytes", message.peak_memory->measured_bytes}};
  }
  if (!message.warnings.empty()) json["warnings"] = message.warnings;
  if (message.best) {
    json["best"] = {{"step", message.best->step},
                    {"validationLoss", number_or_null(message.best->validation_loss)},
                    {"checkpoint", message.best->checkpoint}};
  }
  if (message.stopped_early) json["stoppedEarly"] = true;
  return line_of(json);
}

Result<std::string> message_type(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse(line));
  return string_member(json, "type");
}

Result<Listening> decode_listening(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "listening"));
  TRAINYARD_ASSIGN(std::string address, string_member(json, "address"));
  return Listening{std::move(address)};
}

Result<Start> decode_start(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "start"));
  Start start;
  TRAINYARD_ASSIGN(start.generation, integer_member(json, "generation", 0, kMaxGeneration));
  const Json* ranks = find(json, "ranks");
  if (ranks == nullptr || !ranks->is_array() || ranks->empty()) {
    return bad("ranks", "an array of at least one rank", ranks);
  }
  for (size_t i = 0; i < ranks->size(); ++i) {
    TRAINYARD_ASSIGN(RankEntry entry, decode_entry((*ranks)[i], i));
    start.ranks.push_back(std::move(entry));
  }
  TRAINYARD_ASSIGN(start.resume, decode_resume(json));
  if (start.resume.generation != start.generation) {
    return Error{ErrorCode::kInvalidData, "message member \"resume\": found generation " +
                                              std::to_string(start.resume.generation) +
                                              ", wanted " + std::to_string(start.generation) +
                                              " as in the message itself"};
  }
  if (find(json, "key") != nullptr) {
    TRAINYARD_ASSIGN(const std::string key, string_member(json, "key"));
    TRAINYARD_ASSIGN(start.key, bytes_of_hex(key));
  }
  return start;
}

Result<PeerLost> decode_peer_lost(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "peerLost"));
  PeerLost lost;
  TRAINYARD_ASSIGN(lost.rank, int_member(json, "rank", -1));
  TRAINYARD_ASSIGN(lost.message, string_member(json, "message"));
  return lost;
}

Result<Failing> decode_failing(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "failing"));
  Failing failing;
  TRAINYARD_ASSIGN(const int64_t exit_code, integer_member(json, "exitCode", 1, kMaxExitCode));
  failing.exit_code = static_cast<int>(exit_code);
  TRAINYARD_ASSIGN(failing.message, string_member(json, "message"));
  return failing;
}

Result<Warning> decode_warning(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "warning"));
  Warning warning;
  TRAINYARD_ASSIGN(warning.message, string_member(json, "message"));
  return warning;
}

Result<RunResult> decode_run_result(const std::string& line) {
  TRAINYARD_ASSIGN(const Json json, parse_typed(line, "result"));
  RunResult result;
  TRAINYARD_ASSIGN(result.state_hash, string_member(json, "stateHash"));
  TRAINYARD_ASSIGN(result.step, integer_member(json, "step", 0, kMaxGeneration));
  if (find(json, "skippedSteps") != nullptr) {
    TRAINYARD_ASSIGN(result.skipped_steps, integer_member(json, "skippedSteps", 0, kMaxGeneration));
  }
  TRAINYARD_ASSIGN(result.final_loss, number_member(json, "finalLoss"));
  TRAINYARD_ASSIGN(result.validation_loss, number_member(json, "validationLoss"));
  if (const Json* peak = find(json, "peakMemory"); peak != nullptr) {
    if (!peak->is_object()) return bad("peakMemory", "an object", peak);
    PeakMemory& memory = result.peak_memory.emplace();
    TRAINYARD_ASSIGN(memory.rank, int_member(*peak, "rank", 0));
    TRAINYARD_ASSIGN(memory.planned_bytes,
                     integer_member(*peak, "plannedBytes", 0, kMaxGeneration));
    TRAINYARD_ASSIGN(memory.measured_bytes,
                     integer_member(*peak, "measuredBytes", 0, kMaxGeneration));
  }
  if (const Json* best = find(json, "best"); best != nullptr) {
    if (!best->is_object()) return bad("best", "an object", best);
    BestModel& model = result.best.emplace();
    TRAINYARD_ASSIGN(model.step, integer_member(*best, "step", 0, kMaxGeneration));
    TRAINYARD_ASSIGN(model.validation_loss, number_member(*best, "validationLoss"));
    TRAINYARD_ASSIGN(model.checkpoint, string_member(*best, "checkpoint"));
  }
  if (const Json* early = find(json, "stoppedEarly"); early != nullptr) {
    if (!early->is_boolean()) return bad("stoppedEarly", "true or false", early);
    result.stopped_early = early->get<bool>();
  }
  if (const Json* warnings = find(json, "warnings"); warnings != nullptr) {
    if (!warnings->is_array()) return bad("warnings", "an array", warnings);
    for (const Json& warning : *warnings) {
      if (!warning.is_string()) return bad("warnings", "an array of strings", warnings);
      result.warnings.push_back(warning.get<std::string>());
    }
  }
  return result;
}

}  // namespace trainyard::contract
