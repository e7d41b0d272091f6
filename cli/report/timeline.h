#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "worker/program/instruction.h"
#include "worker/trace/span.h"

/// Which rank of a pipeline runs what when, in pictures.
namespace trainyard::cli {

/// How passes of one kind are drawn, whether they are planned or measured.
struct PassStyle {
  engine::InstructionKind planned;
  trace::Activity measured;
  std::string_view what;
  std::string_view css_class;  ///< of the report's style sheet, and a colour there
  std::string_view number;     ///< class of numbers on that colour

  char letter() const { return name_of(planned).front(); }
};
inline constexpr std::array kPassStyles = {
    PassStyle{engine::InstructionKind::kForward, trace::Activity::kForward, "forward", "s1",
              "card"},
    PassStyle{engine::InstructionKind::kRecompute, trace::Activity::kRecompute, "forward again",
              "s2", "card"},
    PassStyle{engine::InstructionKind::kBackwardInput, trace::Activity::kBackwardInput,
              "gradients of inputs", "s0", "dark"},
    PassStyle{engine::InstructionKind::kBackwardWeight, trace::Activity::kBackwardWeight,
              "gradients of weights", "s4", "dark"},
};
inline constexpr char kWaitLetter = '.';

/// A stretch of a rank's step that passes of one kind take for a micro-batch.
struct TimelinePiece {
  size_t style = 0;  ///< place in kPassStyles
  int micro_batch = 0;
  int stage = -1;  ///< -1: not known
  double begin = 0;
  double end = 0;
};

struct TimelineRow {
  std::string label;
  std::vector<TimelinePiece> pieces;  ///< ascending

  double busy() const;
};

/// The step of the ranks of one pipeline. Where no piece is, a rank waits.
struct Timeline {
  std::string title;
  std::string unit;  ///< of time, as it is written on the axis
  std::vector<TimelineRow> rows;
  double end = 0;  ///< of the step, which begins at 0

  /// Whether any piece is of this place in kPassStyles.
  bool has(size_t style) const;
  /// The part of the step in which a row's rank waits.
  double bubble(const TimelineRow& row) const;
  /// Of all rows together.
  double bubble() const;
};

/// Adds what a rank ran next. Passes of the same micro-batch and stage that follow each other
/// within `gap` become one piece of each kind: a rank changes between B and W, and between layers,
/// more often than a picture can show.
class RowBuilder {
 public:
  explicit RowBuilder(double gap) : gap_(gap) {}
  void add(const TimelinePiece& piece);
  std::vector<TimelinePiece> take();

 private:
  void flush();

  double gap_;
  std::vector<TimelinePiece> run_;  ///< one piece of each kind, in the order of their beginnings
  double run_end_ = 0;
  std::vector<TimelinePiece> pieces_;
};

/// The parts of a step that a picture has room for: [0, head) and [tail, end). All of it where they
/// meet.
struct TimelineWindow {
  double head = 0;
  double tail = 0;
  double per_unit = 0;  ///< time of a unit of room
  bool is_cut() const { return tail > head; }
};

/// `room`: units, of which a pass should have at least one. `gap`: units lost where it is cut.
TimelineWindow window_of(const Timeline& timeline, int room, int gap);

/// The title, and lines of at most `columns` characters: a letter of kPassStyles or kWaitLetter for
/// each stretch of time, and the bubble of each row. Pure.
std::string timeline_text(const Timeline& timeline, int columns);

/// An <svg> element; a document on a light background if `alone`. Colours are attributes, those of
/// light mode, which the report's style sheet overrides. Pure.
std::string timeline_svg(const Timeline& timeline, bool alone);

}  // namespace trainyard::cli
