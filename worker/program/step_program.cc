#include "worker/program/step_program.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace trainyard::engine {

StepProgram::StepProgram(std::vector<Instruction> listed, std::vector<ProgramLoop> loops)
    : listed_(std::move(listed)), loops_(std::move(loops)) {
  size_t end = 0;
  for (const ProgramLoop& loop : loops_) {
    TRAINYARD_CHECK(end <= loop.begin && loop.begin <= loop.end && loop.times >= 1);
    end = loop.end;
    again_ += static_cast<size_t>(loop.times - 1) * loop.body();
  }
  TRAINYARD_CHECK(end <= listed_.size());
}

StepProgram::Found StepProgram::find(size_t id) const {
  for (const ProgramLoop& loop : loops_) {
    if (id < loop.end) break;  // before it, or in its first round
    const size_t again = static_cast<size_t>(loop.times - 1) * loop.body();
    const size_t within = id - loop.begin;
    if (within < again + loop.body()) {
      return {.place = loop.begin + within % loop.body(),
              .later = static_cast<int>(within / loop.body()) * loop.step};
    }
    id -= again;
  }
  return {.place = id};
}

Instruction StepProgram::operator[](size_t id) const {
  const Found found = find(id);
  Instruction instruction = listed_[found.place];
  if (instruction.micro_batch >= 0) instruction.micro_batch += found.later;
  return instruction;
}

int64_t StepProgram::times(size_t listed) const {
  for (const ProgramLoop& loop : loops_) {
    if (listed >= loop.begin && listed < loop.end) return loop.times;
  }
  return 1;
}

StepProgram StepProgram::with_more_rounds(int rounds) const {
  StepProgram more = *this;
  more.again_ = 0;
  // What continues a loop is not before the first micro-batch of the round that would follow. In a
  // schedule that goes forward with all micro-batches first, their way back begins before that.
  int continued = std::numeric_limits<int>::max();
  size_t place = 0;
  const auto move_until = [&](size_t end, int step) {
    for (; place < end; ++place) {
      Instruction& instruction = more.listed_[place];
      if (instruction.micro_batch >= continued) instruction.micro_batch += rounds * step;
    }
  };
  int step = 0;
  for (ProgramLoop& loop : more.loops_) {
    move_until(loop.begin, step);
    TRAINYARD_CHECK(step == 0 || step == loop.step);
    step = loop.step;
    for (; place < loop.end; ++place) {
      const int micro_batch = listed_[place].micro_batch;
      if (micro_batch >= 0) continued = std::min(continued, micro_batch + loop.times * step);
    }
    loop.times += rounds;
    TRAINYARD_CHECK(loop.times >= 1);
    more.again_ += static_cast<size_t>(loop.times - 1) * loop.body();
  }
  move_until(listed_.size(), step);
  return more;
}

std::vector<size_t> StepProgram::excerpt() const {
  std::vector<size_t> places;
  size_t place = 0;
  for (const ProgramLoop& loop : loops_) {
    for (; place < loop.end; ++place)
      places.push_back(place);
    for (size_t again = loop.begin; loop.times > 1 && again < loop.end; ++again)
      places.push_back(again);
  }
  for (; place < listed_.size(); ++place)
    places.push_back(place);
  return places;
}

}  // namespace trainyard::engine
