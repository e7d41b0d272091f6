#include "worker/program/step_program.h"

#include "common/base/check.h"

namespace trainyard::engine {

StepProgram::StepProgram(std::vector<Instruction> listed, const ProgramLoop& loop)
    : listed_(std::move(listed)), loop_(loop), repeated_(body() * static_cast<size_t>(loop.times)) {
  TRAINYARD_CHECK(loop.begin <= loop.end && loop.end <= listed_.size() && loop.times >= 1);
}

size_t StepProgram::place(size_t id) const {
  if (id < loop_.begin || repeated_ == 0) return id;
  const size_t within = id - loop_.begin;
  return within < repeated_ ? loop_.begin + within % body() : id - (repeated_ - body());
}

Instruction StepProgram::operator[](size_t id) const {
  Instruction found = listed_[place(id)];
  const size_t within = id - loop_.begin;
  if (id >= loop_.begin && within < repeated_ && found.micro_batch >= 0)
    found.micro_batch += static_cast<int>(within / body()) * loop_.step;
  return found;
}

std::vector<size_t> StepProgram::excerpt() const {
  std::vector<size_t> places;
  for (size_t place = 0; place < listed_.size(); ++place) {
    places.push_back(place);
    if (loop_.times == 1 || place + 1 != loop_.end) continue;
    for (size_t again = loop_.begin; again < loop_.end; ++again)
      places.push_back(again);
  }
  return places;
}

}  // namespace trainyard::engine
