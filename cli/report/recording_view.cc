#include <chrono>
#include <cstdlib>

#include "cli/report/report.h"
#include "cli/run/format.h"
#include "common/io/file.h"

namespace trainyard::cli {
namespace {

/// Points drawn: more than a screen has columns.
constexpr size_t kPointsDrawn = 4000;

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Whether there is a screen on which a browser could open.
bool has_desktop() {
  return std::getenv("DISPLAY") != nullptr ||        // NOLINT(concurrency-mt-unsafe): only read
         std::getenv("WAYLAND_DISPLAY") != nullptr;  // NOLINT(concurrency-mt-unsafe): only read
}

class RecordingView final : public RunView {
 public:
  RecordingView(std::unique_ptr<RunView> inner, std::filesystem::path run_dir)
      : inner_(std::move(inner)), run_dir_(std::move(run_dir)) {}

  void begin(const RunHeader& header) override {
    inner_->begin(header);
    auto writer = HistoryWriter::open(run_dir_);
    if (writer) {
      writer_ = *std::move(writer);
    } else {
      complain(writer.error());
    }
  }
  void update(const Snapshot& snapshot) override {
    if (writer_) writer_->add(snapshot, now_s());
    inner_->update(snapshot);
  }
  void notice(const Notice& notice) override {
    if (writer_) writer_->add(notice, now_s());
    inner_->notice(notice);
  }
  void end(const Summary& summary) override {
    Summary shown = summary;
    if (write_report(summary)) {
      shown.report_file = (run_dir_ / kReportFile).string();
      if (has_desktop())
        shown.next_commands.push_back("xdg-open " + shell_word(from_here(shown.report_file)));
    }
    inner_->end(shown);
  }

 private:
  bool write_report(const Summary& summary) {
    const Result<History> history = read_history(run_dir_, kPointsDrawn);
    if (!history) {
      complain(history.error());
      return false;
    }
    const Status written =
        write_file_atomic(run_dir_ / kReportFile, render_report(summary, *history));
    if (!written) complain(written.error());
    return written.has_value();
  }
  void complain(const Error& error) {
    inner_->notice({Notice::Kind::kWarning, "NoReport", error.message, {}});
  }

  std::unique_ptr<RunView> inner_;
  std::filesystem::path run_dir_;
  std::unique_ptr<HistoryWriter> writer_;
};

}  // namespace

std::unique_ptr<RunView> make_recording_view(std::unique_ptr<RunView> inner,
                                             const std::filesystem::path& run_dir) {
  return std::make_unique<RecordingView>(std::move(inner), run_dir);
}

}  // namespace trainyard::cli
