#include "worker/trace/trace_file.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/text/json_writer.h"
#include "common/text/whole_number.h"

namespace trainyard::trace {
namespace {

using Json = nlohmann::json;

/// Six full rings at some 220 bytes an event.
constexpr int64_t kMaxFileBytes = int64_t{96} << 20;
constexpr std::string_view kEnd = "]}\n";

/// Microseconds, the format's unit, to the nanosecond.
std::string microseconds(int64_t ns) {
  std::string text = std::to_string(ns / 1000) + ".";
  const std::string fraction = std::to_string(ns % 1000);
  return text.append(3 - fraction.size(), '0') + fraction;
}

/// "forward m0 l3", "reduce u2", "all_reduce #17".
std::string title_of(const Span& span) {
  if (span.activity == Activity::kCollective) {
    return std::string(span.operation) + " #" + std::to_string(span.sequence);
  }
  std::string title(name_of(span.activity));
  if (span.activity == Activity::kStep) return title + " " + std::to_string(span.step);
  if (span.micro_batch >= 0) title += " m" + std::to_string(span.micro_batch);
  if (span.layer >= 0) title += " l" + std::to_string(span.layer);
  if (span.unit >= 0) title += " u" + std::to_string(span.unit);
  return title;
}

void add_argument(text::JsonWriter& json, const char* name, int64_t value) {
  if (value < 0) return;
  json.key(name);
  json.integer(value);
}

void add_string(text::JsonWriter& json, const char* name, std::string_view value) {
  json.key(name);
  json.string(value);
}

std::string event_line(int rank, size_t track, const Span& span) {
  text::JsonWriter json;
  json.begin_object();
  add_string(json, "ph", "X");
  add_string(json, "name", title_of(span));
  add_string(json, "cat", name_of(span.activity));
  json.key("pid");
  json.integer(rank);
  json.key("tid");
  json.integer(static_cast<int64_t>(track));
  json.key("ts");
  json.raw(microseconds(span.begin_ns));
  json.key("dur");
  json.raw(microseconds(std::max<int64_t>(0, span.end_ns - span.begin_ns)));
  json.key("args");
  json.begin_object();
  add_argument(json, "step", span.step);
  add_argument(json, "instruction", span.instruction);
  add_argument(json, "microBatch", span.micro_batch);
  add_argument(json, "layer", span.layer);
  add_argument(json, "unit", span.unit);
  add_argument(json, "sequence", span.sequence);
  add_argument(json, "bytes", span.bytes);
  json.end_object();
  json.end_object();
  return json.take();
}

/// A metadata event: what the viewer calls a process or a thread.
std::string name_line(int rank, std::optional<size_t> track, const std::string& name) {
  text::JsonWriter json;
  json.begin_object();
  add_string(json, "ph", "M");
  add_string(json, "name", track ? "thread_name" : "process_name");
  json.key("pid");
  json.integer(rank);
  if (track) {
    json.key("tid");
    json.integer(static_cast<int64_t>(*track));
  }
  json.key("args");
  json.begin_object();
  add_string(json, "name", name);
  json.end_object();
  json.end_object();
  return json.take();
}

void add_rank(text::JsonWriter& json, const RankTrace& rank) {
  json.begin_object();
  json.key("rank");
  json.integer(rank.rank);
  json.key("steps");
  json.integer(rank.steps);
  json.key("communicationNanos");
  json.integer(rank.overlap.communication_ns);
  json.key("exposedNanos");
  json.integer(rank.overlap.exposed_ns);
  json.end_object();
}

/// The first line of a file; events follow, one a line, and kEnd.
std::string header_line(int64_t generation, const std::vector<RankTrace>& ranks) {
  text::JsonWriter json;
  json.begin_object();
  add_string(json, "displayTimeUnit", "ms");
  json.key("otherData");
  json.begin_object();
  add_string(json, "clock", "CLOCK_MONOTONIC");
  json.key("generation");
  json.integer(generation);
  json.key("ranks");
  json.begin_array();
  for (const RankTrace& rank : ranks)
    add_rank(json, rank);
  json.end_array();
  json.end_object();
  return json.take() + ",\"traceEvents\":[\n";
}

/// Events of one file joined as the format wants them.
void append_events(std::string& text, bool& first, std::string_view line) {
  if (!first) text += ",\n";
  first = false;
  text += line;
}

/// Generation and rank of a file name of rank_trace_name(); nullopt for other names.
std::optional<TraceOwner> owner_of(const std::string& name) {
  TraceOwner owner;
  const char* const end = name.data() + name.size();
  if (name.empty() || name[0] != 'g') return std::nullopt;
  const auto generation = std::from_chars(name.data() + 1, end, owner.generation);
  constexpr std::string_view kMiddle = "-rank-";
  if (generation.ec != std::errc() || !std::string_view(generation.ptr, end).starts_with(kMiddle)) {
    return std::nullopt;
  }
  const auto rank = std::from_chars(generation.ptr + kMiddle.size(), end, owner.rank);
  if (rank.ec != std::errc() || std::string_view(rank.ptr, end) != ".json") return std::nullopt;
  return owner;
}

/// The files of the newest generation, by rank.
std::vector<TraceOwner> newest_owners(const std::filesystem::path& directory) {
  std::vector<TraceOwner> owners;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const auto owner = owner_of(entry.path().filename().string());
    if (!owner) continue;
    if (!owners.empty() && owner->generation < owners.front().generation) continue;
    if (!owners.empty() && owner->generation > owners.front().generation) owners.clear();
    owners.push_back(*owner);
  }
  std::sort(owners.begin(), owners.end(),
            [](const TraceOwner& a, const TraceOwner& b) { return a.rank < b.rank; });
  return owners;
}

struct RankFile {
  RankTrace rank;
  std::string content;
  size_t events_at = 0;
};

Result<RankFile> read_rank_file(const std::filesystem::path& path) {
  RankFile file;
  TRAINYARD_ASSIGN(file.content, read_file(path, kMaxFileBytes));
  const Error damaged{ErrorCode::kInvalidData,
                      path.string() + ": no trace of a rank; remove it or trace again"};
  const size_t line_end = file.content.find('\n');
  if (line_end == std::string::npos || !file.content.ends_with(kEnd)) return damaged;
  const Json header = Json::parse(file.content.substr(0, line_end) + "]}", nullptr, false);
  try {
    const Json& rank = header.at("otherData").at("ranks").at(0);
    file.rank = {.rank = static_cast<int>(whole_number(rank.at("rank"))),
                 .steps = whole_number(rank.at("steps")),
                 .overlap = {.communication_ns = whole_number(rank.at("communicationNanos")),
                             .exposed_ns = whole_number(rank.at("exposedNanos"))}};
  } catch (const Json::exception&) {
    return damaged;
  }
  file.events_at = line_end + 1;
  return file;
}

}  // namespace

std::string rank_trace_name(const TraceOwner& owner) {
  return "g" + std::to_string(owner.generation) + "-rank-" + std::to_string(owner.rank) + ".json";
}

Status write_rank_trace(const std::filesystem::path& directory, const TraceOwner& owner,
                        const Spans& spans) {
  const std::vector<Span>& step = spans[static_cast<size_t>(Track::kStep)];
  std::vector<Span> collectives;
  for (const Track track : kTrainingGroups) {
    const std::vector<Span>& group = spans[static_cast<size_t>(track)];
    collectives.insert(collectives.end(), group.begin(), group.end());
  }
  const RankTrace rank{
      .rank = owner.rank,
      .steps = std::count_if(step.begin(), step.end(),
                             [](const Span& span) { return span.activity == Activity::kStep; }),
      .overlap = overlap_of(collectives, step)};
  std::string text = header_line(owner.generation, {rank});
  bool first = true;
  append_events(text, first,
                name_line(owner.rank, std::nullopt, "rank " + std::to_string(owner.rank)));
  for (size_t t = 0; t < kTracks; ++t) {
    if (spans[t].empty()) continue;
    append_events(text, first,
                  name_line(owner.rank, t, std::string(name_of(static_cast<Track>(t)))));
    for (const Span& span : spans[t])
      append_events(text, first, event_line(owner.rank, t, span));
  }
  TRAINYARD_TRY(make_directories(directory));
  return write_file_atomic(directory / rank_trace_name(owner), text + "\n" + std::string(kEnd));
}

Result<MergedTrace> merge_traces(const std::filesystem::path& directory,
                                 const std::filesystem::path& file,
                                 std::vector<std::string>* notes) {
  MergedTrace merged{.file = file};
  std::vector<RankFile> files;
  for (const TraceOwner& owner : newest_owners(directory)) {
    Result<RankFile> read = read_rank_file(directory / rank_trace_name(owner));
    if (!read) {
      notes->push_back(read.error().message);
      continue;
    }
    merged.generation = owner.generation;
    merged.ranks.push_back(read->rank);
    files.push_back(*std::move(read));
  }
  if (files.empty()) {
    return Error{ErrorCode::kNotFound,
                 directory.string() +
                     ": found no trace of a rank, wanted one; a rank writes it "
                     "when it ends by itself"};
  }
  std::string text = header_line(merged.generation, merged.ranks);
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string& content = files[i].content;
    const size_t end = content.size() - kEnd.size() - 1;  // without the last newline
    if (i > 0) text += ",\n";
    text.append(content, files[i].events_at, end - files[i].events_at);
  }
  TRAINYARD_TRY(write_file_atomic(file, text + "\n" + std::string(kEnd)));
  return merged;
}

}  // namespace trainyard::trace
