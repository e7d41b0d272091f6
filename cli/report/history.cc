#include "cli/report/history.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <functional>
#include <span>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/io/file.h"
#include "common/io/input.h"
#include "common/text/bounded_json.h"
#include "common/text/json_writer.h"
#include "common/text/whole_number.h"

namespace trainyard::cli {
namespace {

/// Ours are two levels deep.
constexpr int kDepthMax = 16;

/// At most two points a second: a month of training stays below 3 GB and the curves lose nothing.
constexpr double kIntervalSeconds = 0.5;
/// A line longer than this is none of ours.
constexpr size_t kMaxLineBytes = size_t{1} << 20;
constexpr size_t kReadBytes = size_t{1} << 16;

void add_number(text::JsonWriter& json, std::string_view key, double value) {
  if (!std::isfinite(value)) return;
  json.key(key);
  json.number(value);
}

HistoryPoint point_of(const nlohmann::ordered_json& line) {
  HistoryPoint point;
  point.time_s = line.value("time", 0.0);
  point.step = whole_number(line, "step", 0);
  point.generation = whole_number(line, "generation", 0);
  contract::visit_figures(
      [&](const contract::Figure& figure, std::optional<double>& value) {
        if (const auto found = line.find(figure.key); found != line.end()) {
          value = found->get<double>();
        }
      },
      point);
  point.checkpoint_step = whole_number(line, "checkpointStep", -1);
  if (const auto stages = line.find("stageSeconds"); stages != line.end() && stages->is_object()) {
    for (const auto& [name, seconds] : stages->items())
      point.stage_seconds.push_back({name, seconds.get<double>()});
  }
  return point;
}

/// Keeps of any number of points at most `limit` (0: all) and the last one, evenly spread, without
/// ever holding many more: a history grows for months.
class Thinner {
 public:
  explicit Thinner(size_t limit) : limit_(limit) {}

  void add(HistoryPoint point) {
    const bool keep = seen_++ % every_ == 0;
    if (!keep) {
      last_ = std::move(point);
      return;
    }
    last_.reset();
    kept_.push_back(std::move(point));
    if (limit_ > 0 && kept_.size() > 2 * limit_) halve();
  }

  std::vector<HistoryPoint> take() {
    if (!last_ && kept_.size() > 1) {
      last_ = std::move(kept_.back());
      kept_.pop_back();
    }
    if (limit_ > 0 && kept_.size() > limit_) halve();
    if (last_) kept_.push_back(*std::move(last_));
    return std::move(kept_);
  }

 private:
  void halve() {
    for (size_t i = 1; 2 * i < kept_.size(); ++i)
      kept_[i] = std::move(kept_[2 * i]);
    kept_.resize((kept_.size() + 1) / 2);
    every_ *= 2;
  }

  const size_t limit_;
  uint64_t seen_ = 0;
  uint64_t every_ = 1;
  std::vector<HistoryPoint> kept_;
  std::optional<HistoryPoint> last_;  ///< the newest, where it is not the last of those kept
};

/// Hands over one line after another of a file of any size, but for those that are too long.
Status read_lines(const std::filesystem::path& path,
                  const std::function<void(std::string_view)>& take) {
  TRAINYARD_ASSIGN(const UniqueFd fd, open_regular(path));
  std::string pending;
  const auto append = [&](std::string_view piece) {
    // One byte over the limit tells that the line is; the rest of it need not be kept.
    pending += piece.substr(0, kMaxLineBytes + 1 - pending.size());
  };
  const auto end_line = [&] {
    if (pending.size() <= kMaxLineBytes) take(pending);
    pending.clear();
  };
  std::string buffer(kReadBytes, '\0');
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return io_error("read " + path.string(), errno);
    if (n == 0) break;
    std::string_view rest(buffer.data(), static_cast<size_t>(n));
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos;) {
      append(rest.substr(0, end));
      end_line();
      rest.remove_prefix(end + 1);
    }
    append(rest);
  }
  end_line();
  return {};
}

/// Adds one line to the history; anything that is no line of ours is left out.
void add_line(std::string_view text, Thinner& points, History& history) {
  const auto line = parse_bounded_json<nlohmann::ordered_json>(text, kDepthMax)
                        .value_or(nlohmann::ordered_json());
  if (!line.is_object()) return;
  try {
    const std::string type = line.value("type", "");
    if (type == "point") points.add(point_of(line));
    if (type == "event") {
      history.events.push_back({line.value("time", 0.0), whole_number(line, "step", 0),
                                line.value("reason", ""), line.value("message", "")});
    }
  } catch (const nlohmann::json::exception&) {
    return;  // a member of another type: as damaged as no JSON at all
  }
}

}  // namespace

Result<std::unique_ptr<HistoryWriter>> HistoryWriter::open(const std::filesystem::path& run_dir) {
  const auto path = run_dir / kHistoryFile;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return io_error("open " + path.string(), errno);
  std::unique_ptr<HistoryWriter> writer(new HistoryWriter(fd));
  struct stat info {};
  char last = '\n';
  if (::fstat(fd, &info) == 0 && info.st_size > 0) (void)!::pread(fd, &last, 1, info.st_size - 1);
  writer->cut_ = last != '\n';
  return writer;
}

HistoryWriter::~HistoryWriter() { ::close(fd_); }

/// A history is for pictures: a full disk must not stop a run, so errors are dropped. What it cut
/// off is ended, so that it takes no other line with it.
void HistoryWriter::write(const std::string& line) {
  const std::string text = cut_ ? "\n" + line : line;
  cut_ = !write_all(fd_, std::as_bytes(std::span(text.data(), text.size())), kHistoryFile);
}

void HistoryWriter::add(const Snapshot& snapshot, double time_s) {
  newest_step_ = snapshot.step;
  // Evaluations follow their step, the last one too.
  const bool evaluated = snapshot.validation_loss != last_validation_loss_;
  // Known after a step, other than a loss that is no number: that one is a gap in the curve.
  const bool trained = snapshot.loss || snapshot.learning_rate;
  if (!trained || (snapshot.step == last_step_ && !evaluated)) return;
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
  contract::visit_figures(
      [&](const contract::Figure& figure, const std::optional<double>& value) {
        if (value) add_number(json, figure.key, *value);
      },
      snapshot);
  json.key("checkpointStep");
  json.integer(snapshot.checkpoint_step);
  if (!snapshot.stage_seconds.empty()) {
    json.key("stageSeconds");
    json.begin_object();
    for (const NamedSeconds& stage : snapshot.stage_seconds)
      add_number(json, stage.name, stage.seconds);
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
  json.integer(notice.step >= 0 ? notice.step : newest_step_);
  json.key("reason");
  json.string(notice.reason);
  json.key("message");
  json.string(notice.message);
  json.end_object();
  write(json.take() + "\n");
}

Result<History> read_history(const std::filesystem::path& run_dir, size_t limit) {
  History history;
  Thinner points(limit);
  TRAINYARD_TRY(read_lines(run_dir / kHistoryFile,
                           [&](std::string_view line) { add_line(line, points, history); }));
  history.points = points.take();
  return history;
}

}  // namespace trainyard::cli
