#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/run_view.h"
#include "common/base/error.h"

namespace trainyard::cli {

/// A run at one moment, as its history keeps it.
struct HistoryPoint : contract::KnownFigures {
  double time_s = 0;  ///< Unix time
  int64_t step = 0;
  int64_t generation = 0;
  int64_t checkpoint_step = -1;
  std::vector<NamedSeconds> stage_seconds;  ///< as in Snapshot
};

/// Something worth a mark on the curves.
struct HistoryEvent {
  double time_s = 0;
  int64_t step = 0;  ///< newest step known then
  std::string reason;
  std::string message;
};

struct History {
  std::vector<HistoryPoint> points;
  std::vector<HistoryEvent> events;
};

inline constexpr char kHistoryFile[] = "history.jsonl";

/// Appends to RUN/history.jsonl: one JSON object a line, `{"type":"point",...}` or
/// `{"type":"event",...}`; format in docs/formats/run-directory.md. A run that is started again
/// goes on in the same file. One thread.
class HistoryWriter {
 public:
  /// Errors: kIo.
  static Result<std::unique_ptr<HistoryWriter>> open(const std::filesystem::path& run_dir);
  ~HistoryWriter();

  /// Keeps the snapshot when it shows a new step and the last kept one is old enough, or a new
  /// evaluation.
  void add(const Snapshot& snapshot, double time_s);
  void add(const Notice& notice, double time_s);

 private:
  explicit HistoryWriter(int fd) : fd_(fd) {}
  void write(const std::string& line);
  int fd_;
  bool cut_ = false;         ///< the file's last line has no end
  int64_t last_step_ = -1;   ///< of the newest point kept
  int64_t newest_step_ = 0;  ///< of the newest snapshot
  std::optional<double> last_validation_loss_;
  double last_time_s_ = 0;
};

/// Reads a history; lines that are damaged (a crash cut one short) are left out. Of more than
/// `limit` points every n-th and the last are kept (0: all); a history may be of any length.
/// Errors: kNotFound, kIo.
Result<History> read_history(const std::filesystem::path& run_dir, size_t limit);

}  // namespace trainyard::cli
