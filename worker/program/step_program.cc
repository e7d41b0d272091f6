#include "worker/program/step_program.h"

#include "common/base/check.h"

namespace trainyard::engine {

StepProgram::StepProgram(std::vector<Instruction> listed, const ProgramLoop& loop)
    : listed_(std::move(listed)), loop_(loop), repeated_(body() * static_cast<size_t>(loop.times)) {
  TRAINYARD_CHECK(loop.begin <= loop.end && loop.end <= listed_.size() && loop.times >= 1);
}

Instruction StepProgram::operator[](size_t id) const {
  if (id < loop_.begin || repeated_ == 0) return listed_[id];
  const size_t within = id - loop_.begin;
  if (within >= repeated_) return listed_[id - (repeated_ - body())];
  Instruction found = listed_[loop_.begin + within % body()];
  if (found.micro_batch >= 0) found.micro_batch += static_cast<int>(within / body()) * loop_.step;
  return found;
}

std::vector<Instruction> StepProgram::excerpt() const {
  std::vector<Instruction> all = listed_;
  if (loop_.times > 1) {
    const auto at = [](const auto& list, size_t place) {
      return list.begin() + static_cast<std::ptrdiff_t>(place);
    };
    all.insert(at(all, loop_.end), at(listed_, loop_.begin), at(listed_, loop_.end));
  }
  return all;
}

}  // namespace trainyard::engine
