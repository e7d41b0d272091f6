#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/program/instruction.h"

namespace trainyard::engine {

/// A part of a program that runs several times: `times` times the listed instructions
/// [begin, end), each time with `step` more added to their micro-batches.
struct ProgramLoop {
  size_t begin = 0;
  size_t end = 0;
  int times = 1;
  int step = 0;
};

/// A rank's static list of instructions for one step. An instruction's index is the id that traces,
/// heartbeats and fault tests use. What repeats from one micro-batch to the next is stored once, so
/// that a program of thousands of micro-batches takes no more memory than one of a few. Pure data.
class StepProgram {
 public:
  StepProgram() = default;
  /// A list is a program: implicit on purpose.
  StepProgram(std::vector<Instruction> listed) : listed_(std::move(listed)) {}  // NOLINT
  /// `listed` with a loop; the micro-batches behind the loop are those of the whole program.
  StepProgram(std::vector<Instruction> listed, const ProgramLoop& loop);

  size_t size() const { return listed_.size() + repeated_ - body(); }
  bool empty() const { return listed_.empty(); }
  Instruction operator[](size_t id) const;

  class Iterator {
   public:
    using value_type = Instruction;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(const StepProgram* program, size_t id) : program_(program), id_(id) {}
    Instruction operator*() const { return (*program_)[id_]; }
    Iterator& operator++() {
      ++id_;
      return *this;
    }
    Iterator operator++(int) { return {program_, id_++}; }
    bool operator==(const Iterator&) const = default;

   private:
    const StepProgram* program_ = nullptr;
    size_t id_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  const ProgramLoop& loop() const { return loop_; }
  /// The stored instructions, the place there of an instruction, and how often a stored one runs.
  const std::vector<Instruction>& listed() const { return listed_; }
  size_t place(size_t id) const;
  int64_t times(size_t listed) const {
    return listed >= loop_.begin && listed < loop_.end ? loop_.times : 1;
  }
  /// Places among the stored instructions, those of the loop twice if it runs more than once:
  /// whatever is alive together in the program is alive together here.
  std::vector<size_t> excerpt() const;
  /// Bytes that the instructions are stored in.
  int64_t bytes() const { return static_cast<int64_t>(listed_.size() * sizeof(Instruction)); }

 private:
  size_t body() const { return loop_.end - loop_.begin; }

  std::vector<Instruction> listed_;
  ProgramLoop loop_;
  size_t repeated_ = 0;  // instructions of all rounds of the loop
};

}  // namespace trainyard::engine
