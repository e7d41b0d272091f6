#include "cli/report/timeline.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace trainyard::cli {
namespace {

/// Waits may be this many times as long as passes without being cut.
constexpr double kWaitsShown = 2;

/// Length of the pieces that a picture should show one by one: of each row the median, of these the
/// least; more where all pieces have room beside long waits.
double typical_length(const Timeline& timeline) {
  double least = timeline.end;
  size_t pieces = 1;
  for (const TimelineRow& row : timeline.rows) {
    pieces = std::max(pieces, row.pieces.size());
    std::vector<double> lengths;
    for (const TimelinePiece& piece : row.pieces)
      lengths.push_back(piece.end - piece.begin);
    if (lengths.empty()) continue;
    const auto middle = lengths.begin() + static_cast<ptrdiff_t>(lengths.size() / 2);
    std::nth_element(lengths.begin(), middle, lengths.end());
    least = std::min(least, *middle);
  }
  return std::max(least, timeline.end / ((1 + kWaitsShown) * static_cast<double>(pieces)));
}

/// The letter of what takes most of [begin, end). `from`: a piece before which none ends after
/// `begin`; moves on.
char letter_of(const TimelineRow& row, double begin, double end, size_t& from) {
  std::array<double, kPassStyles.size()> taken{};
  while (from < row.pieces.size() && row.pieces[from].end <= begin)
    ++from;
  for (size_t i = from; i < row.pieces.size() && row.pieces[i].begin < end; ++i) {
    const TimelinePiece& piece = row.pieces[i];
    taken[piece.style] += std::min(end, piece.end) - std::max(begin, piece.begin);
  }
  const auto most = std::max_element(taken.begin(), taken.end());
  const double waits = (end - begin) - std::accumulate(taken.begin(), taken.end(), 0.0);
  if (waits >= *most) return kWaitLetter;
  return kPassStyles[static_cast<size_t>(most - taken.begin())].letter();
}

}  // namespace

double TimelineRow::busy() const {
  double sum = 0;
  for (const TimelinePiece& piece : pieces)
    sum += piece.end - piece.begin;
  return sum;
}

double Timeline::bubble(const TimelineRow& row) const {
  return end > 0 ? std::max(0.0, 1 - row.busy() / end) : 0;
}

bool Timeline::has(size_t style) const {
  const auto is_of = [style](const TimelinePiece& piece) { return piece.style == style; };
  return std::any_of(rows.begin(), rows.end(), [&](const TimelineRow& row) {
    return std::any_of(row.pieces.begin(), row.pieces.end(), is_of);
  });
}

double Timeline::bubble() const {
  double sum = 0;
  for (const TimelineRow& row : rows)
    sum += bubble(row);
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

void RowBuilder::add(const TimelinePiece& piece) {
  if (piece.end <= piece.begin) return;
  const bool goes_on = !run_.empty() && run_.front().micro_batch == piece.micro_batch &&
                       run_.front().stage == piece.stage && piece.begin - run_end_ <= gap_;
  if (!goes_on) flush();
  const auto same = std::find_if(run_.begin(), run_.end(), [&](const TimelinePiece& other) {
    return other.style == piece.style;
  });
  if (same == run_.end()) {
    run_.push_back(piece);
  } else {
    same->end += piece.end - piece.begin;  // of a run only the lengths count
  }
  run_end_ = piece.end;
}

/// The kinds of a run one after the other, each as long as it took.
void RowBuilder::flush() {
  double at = run_.empty() ? 0 : run_.front().begin;
  for (TimelinePiece& piece : run_) {
    const double length = piece.end - piece.begin;
    piece.begin = at;
    piece.end = at += length;
    pieces_.push_back(piece);
  }
  run_.clear();
}

std::vector<TimelinePiece> RowBuilder::take() {
  flush();
  return std::move(pieces_);
}

TimelineWindow window_of(const Timeline& timeline, int room, int gap) {
  const double typical = typical_length(timeline);
  if (timeline.end <= typical * room || timeline.end <= 0)
    return {timeline.end, timeline.end, timeline.end / room};
  const double part = typical * (room - gap) / 2;
  return {part, timeline.end - part, typical};
}

std::string timeline_text(const Timeline& timeline, int columns) {
  constexpr std::string_view kCut = " ~~ ";
  constexpr int kBubble = 8;  // "  27.3 %"
  size_t label = 0;
  for (const TimelineRow& row : timeline.rows)
    label = std::max(label, row.label.size());
  const int room = std::max(16, columns - static_cast<int>(label) - 1 - kBubble);
  const TimelineWindow window = window_of(timeline, room, static_cast<int>(kCut.size()));
  const auto drawn = [&](const TimelineRow& row, double begin, int count) {
    size_t from = 0;
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += letter_of(row, begin + i * window.per_unit, begin + (i + 1) * window.per_unit, from);
    }
    return text;
  };
  const int half = (room - static_cast<int>(kCut.size())) / 2;
  std::string text = timeline.title + "\n";
  for (const TimelineRow& row : timeline.rows) {
    text += fmt::format("{:<{}} ", row.label, label);
    text += window.is_cut()
                ? drawn(row, 0, half) + std::string(kCut) + drawn(row, window.tail, half)
                : drawn(row, 0, room);
    text += fmt::format("{:>6.1f} %\n", 100 * timeline.bubble(row));
  }
  return text;
}

}  // namespace trainyard::cli
