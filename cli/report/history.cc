#include "cli/report/history.h"

#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <span>
#include <string_view>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/text/json_writer.h"

namespace trainyard::cli {
namespace {

/// At most two points a second: a week of training stays below 150 MB and the curves lose nothing.
constexpr double kIntervalSeconds = 0.5;
/// A history larger than this is not read.
constexpr int64_t kMaxHistoryBytes = int64_t{1} << 30;

void add_number(text::JsonWriter& json, const char* key, double value) {
  if (!std::isfinite(value)) return;
  json.key(key);
  json.number(value);
}

HistoryPoint point_of(const nlohmann::ordered_json& line) {
  HistoryPoint point;
  point.time_s = line.value("time", 0.0);
  point.step = line.value("step", int64_t{0});
  point.generation = line.value("generation", int64_t{0});
  point.loss = line.value("loss", std::nan(""));
  point.learning_rate = line.value("learningRate", std::nan(""));
  point.tokens_per_second = line.value("tokensPerSecond", std::nan(""));
  if (line.contains("validationLoss")) point.validation_loss = line.value("validationLoss", 0.0);
  point.checkpoint_step = line.value("checkpointStep", int64_t{-1});
  if (const auto stages = line.find("stageSeconds"); stages != line.end() && stages->is_object()) {
    for (const auto& [name, seconds] : stages->items())
      point.stage_seconds.push_back({name, seconds.get<double>()});
  }
  return point;
}

/// Adds one line to the history; anything that is no line of ours is left out.
void add_line(std::string_view text, History& history) {
  const auto line = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!line.is_object()) return;
  try {
    const std::string type = line.value("type", "");
    if (type == "point") history.points.push_back(point_of(line));
    if (type == "event") {
      history.events.push_back({line.value("time", 0.0), line.value("step", int64_t{0}),
                                line.value("reason", ""), line.value("message", "")});
    }
  } catch (const nlohmann::json::exception&) {
    return;  // a member of another type: as damaged as no JSON at all
  }
}

}  // namespace

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open(const std::filesystem::path& run_dir) {
  const auto path = run_dir / kHistoryFile;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("open " + path.string(), errno);
  return std::unique_ptr<HistoryWriter>(new HistoryWriter(fd));
}

HistoryWriter::~HistoryWriter() { ::close(fd_); }

/// A history is for pictures: a full disk must not stop a run, so errors are dropped.
void HistoryWriter::write(const std::string& line) {
  (void)write_all(fd_, std::as_bytes(std::span(line.data(), line.size())), kHistoryFile);
}

void HistoryWriter::add(const Snapshot& snapshot, double time_s) {
  // Evaluations follow their step, the last one too.
  const bool evaluated = snapshot.validation_loss != last_validation_loss_;
  if (!snapshot.loss || (snapshot.step == last_step_ && !evaluated)) return;
  const bool is_last = snapshot.step == snapshot.total_steps;
  if (!is_last && !evaluated && time_s - last_time_s_ < kIntervalSeconds) return;
  last_step_ = snapshot.step;
  last_validation_loss_ = snapshot.validation_loss;
  last_time_s_ = time_s;
  text::JsonWriter json;
  json.begin_object();
  json.key("type");
  json.string("point");
  add_number(json, "time", time_s);
  json.key("step");
  json.integer(snapshot.step);
  json.key("generation");
  json.integer(snapshot.generation);
  add_number(json, "loss", *snapshot.loss);
  if (snapshot.learning_rate) add_number(json, "learningRate", *snapshot.learning_rate);
  if (snapshot.tokens_per_second) {
    add_number(json, "tokensPerSecond", *snapshot.tokens_per_second);
  }
  if (snapshot.validation_loss) add_number(json, "validationLoss", *snapshot.validation_loss);
  json.key("checkpointStep");
  json.integer(snapshot.checkpoint_step);
  if (!snapshot.stage_seconds.empty()) {
    json.key("stageSeconds");
    json.begin_object();
    for (const NamedSeconds& stage : snapshot.stage_seconds)
      add_number(json, stage.name.c_str(), stage.seconds);
    json.end_object();
  }
  json.end_object();
  write(json.take() + "\n");
}

void HistoryWriter::add(const Notice& notice, double time_s) {
  if (notice.reason.empty()) return;
  text::JsonWriter json;
  json.begin_object();
  json.key("type");
  json.string("event");
  add_number(json, "time", time_s);
  json.key("step");
  json.integer(last_step_);
  json.key("reason");
  json.string(notice.reason);
  json.key("message");
  json.string(notice.message);
  json.end_object();
  write(json.take() + "\n");
}

Result<History> read_history(const std::filesystem::path& run_dir, size_t limit) {
  TRAINYARD_ASSIGN(const std::string content, read_file(run_dir / kHistoryFile, kMaxHistoryBytes));
  History history;
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    add_line(std::string_view(content).substr(begin, end - begin), history);
    begin = end + 1;
  }
  if (limit == 0 || history.points.size() <= limit) return history;
  const size_t every = (history.points.size() + limit - 1) / limit;
  std::vector<HistoryPoint> kept;
  for (size_t i = 0; i < history.points.size(); ++i) {
    if (i % every == 0 || i + 1 == history.points.size()) kept.push_back(history.points[i]);
  }
  history.points = std::move(kept);
  return history;
}

}  // namespace trainyard::cli
