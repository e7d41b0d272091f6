#include <algorithm>
#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include "cli/run/format.h"
#include "cli/run/run_view.h"
#include "cli/run/terminal.h"

namespace trainyard::cli {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

constexpr std::chrono::seconds kPlainInterval{5};
/// More ranks than this are not shown one by one.
constexpr size_t kMaxRankLines = 8;
constexpr int64_t kBarWidth = 30;
constexpr int64_t kMinBarWidth = 6;

std::string bar(const Snapshot& snapshot, int64_t width) {
  const int64_t total = std::max<int64_t>(1, snapshot.total_steps);
  const int64_t filled = std::clamp<int64_t>(width * snapshot.step / total, 0, width);
  return "[" + std::string(static_cast<size_t>(filled), '#') +
         std::string(static_cast<size_t>(width - filled), '-') + "] ";
}

/// The bar takes what the numbers leave; on a narrow terminal it goes first.
std::string progress_line(const Snapshot& snapshot, size_t columns) {
  std::string text = step_text(snapshot);
  if (snapshot.eta_s) text += "  ETA " + duration_text(*snapshot.eta_s);
  const auto left = static_cast<int64_t>(columns) - static_cast<int64_t>(text.size()) - 4;
  return left < kMinBarWidth ? text : bar(snapshot, std::min<int64_t>(left, kBarWidth)) + text;
}

/// Cut where two blanks part one measure from the next.
std::vector<std::string> wrapped(const std::string& text, size_t columns) {
  std::vector<std::string> lines;
  size_t begin = 0;
  while (text.size() - begin >= columns) {
    const size_t cut = text.rfind("  ", begin + columns - 2);
    if (cut == std::string::npos || cut <= begin) break;
    lines.push_back(text.substr(begin, cut - begin));
    begin = cut + 2;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

class TerminalView final : public RunView {
 public:
  explicit TerminalView(std::ostream& out) : out_(out) {}
  ~TerminalView() override { erase(); }

  void begin(const RunHeader& header) override {
    name_ = header.job_name;
    out_ << header_text(header) << std::flush;
  }

  void update(const Snapshot& snapshot) override {
    std::vector<std::string> lines;
    lines.push_back(name_ + "  " + snapshot.activity);
    const auto columns = static_cast<size_t>(terminal::size().columns);
    lines.push_back(progress_line(snapshot, columns));
    for (std::string& line : wrapped(measures_text(snapshot), columns))
      lines.push_back(std::move(line));
    if (snapshot.ranks.size() > 1 && snapshot.ranks.size() <= kMaxRankLines) {
      for (const control::RankReading& rank : snapshot.ranks) {
        lines.push_back("  rank " + std::to_string(rank.rank) + "  step " +
                        std::to_string(rank.step) + "  " +
                        std::string(contract::name_of(rank.phase)));
      }
    }
    draw(std::move(lines));
  }

  void notice(const Notice& notice) override {
    erase();
    out_ << notice_text(notice) << std::flush;
  }

  void end(const Summary& summary) override {
    erase();
    out_ << summary_text(summary) << std::flush;
  }

 private:
  /// What does not fit above the cursor's own row is left out: a block that scrolled could not be
  /// written over.
  void draw(std::vector<std::string> lines) {
    const terminal::Size size = terminal::size();
    const auto columns = static_cast<size_t>(size.columns);
    lines.resize(std::min(lines.size(), static_cast<size_t>(size.rows) - 1));
    if (lines.empty()) return erase();
    std::string text = drawn_lines_ == 0 ? terminal::kHideCursor : up(drawn_lines_);
    for (size_t i = 0; i < lines.size(); ++i) {
      // A line that wrapped would break the way back up. All of it is ASCII but the name.
      const std::string line = lines[i].substr(0, columns - 1);
      text += i == 0 ? terminal::kBold + line + terminal::kNormal : line;
      text += std::string(terminal::kClearLine) + '\n';
    }
    if (drawn_lines_ > lines.size()) text += terminal::kClearBelow;
    drawn_lines_ = lines.size();
    out_ << text << std::flush;
  }

  static std::string up(size_t lines) { return "\x1b[" + std::to_string(lines) + "A\r"; }

  /// Line by line: a terminal that is told to clear all of its screen may keep it above (tmux).
  void erase() {
    if (drawn_lines_ == 0) return;
    std::string text = up(drawn_lines_);
    for (size_t i = 0; i < drawn_lines_; ++i)
      text += std::string(terminal::kClearLine) + '\n';
    out_ << text << up(drawn_lines_) << terminal::kShowCursor << std::flush;
    drawn_lines_ = 0;
  }

  std::ostream& out_;
  std::string name_;
  size_t drawn_lines_ = 0;
};

class PlainView final : public RunView {
 public:
  explicit PlainView(std::ostream& out) : out_(out) {}

  void begin(const RunHeader& header) override { out_ << header_text(header) << std::flush; }

  void update(const Snapshot& snapshot) override {
    const SteadyTime now = std::chrono::steady_clock::now();
    const bool news = snapshot.activity != activity_ || snapshot.validation_loss != validation_;
    if (now < next_ && !news) return;
    next_ = now + kPlainInterval;
    activity_ = snapshot.activity;
    validation_ = snapshot.validation_loss;
    std::string line = snapshot.activity + "  " + step_text(snapshot);
    const std::string measures = measures_text(snapshot);
    if (!measures.empty()) line += "  " + measures;
    if (snapshot.eta_s) line += "  ETA " + duration_text(*snapshot.eta_s);
    if (line == last_line_) return;
    last_line_ = line;
    out_ << line << std::endl;
  }

  void notice(const Notice& notice) override { out_ << notice_text(notice) << std::flush; }
  void end(const Summary& summary) override { out_ << summary_text(summary) << std::flush; }

 private:
  std::ostream& out_;
  SteadyTime next_;
  std::string activity_;
  std::optional<double> validation_;
  std::string last_line_;
};

}  // namespace

std::unique_ptr<RunView> make_terminal_view(std::ostream& out) {
  return std::make_unique<TerminalView>(out);
}

std::unique_ptr<RunView> make_plain_view(std::ostream& out) {
  return std::make_unique<PlainView>(out);
}

}  // namespace trainyard::cli
