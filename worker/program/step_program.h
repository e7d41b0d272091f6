#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
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

  size_t body() const { return end - begin; }
};

/// A rank's static list of instructions for one step. An instruction's index is the id that traces,
/// heartbeats and fault tests use. What repeats from one micro-batch to the next is stored once, so
/// that a program of thousands of micro-batches takes no more memory than one of a few. Pure data.
class StepProgram {
 public:
  StepProgram() = default;
  /// A list is a program: implicit on purpose.
  StepProgram(std::vector<Instruction> listed) : listed_(std::move(listed)) {}  // NOLINT
  /// `listed` with loops, ascending; the micro-batches behind a loop are those of the whole
  /// program.
  StepProgram(std::vector<Instruction> listed, std::vector<ProgramLoop> loops);

  size_t size() const { return listed_.size() + again_; }
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

  const std::vector<ProgramLoop>& loops() const { return loops_; }
  /// The same with so many rounds of each loop more, or fewer: what continues a loop behind it
  /// names later micro-batches, or earlier ones. The micro-batches in bodies stay. CHECKs that all
  /// loops have the same step.
  StepProgram with_more_rounds(int rounds) const;
  /// The stored instructions, the place there of an instruction, and how often a stored one runs.
  const std::vector<Instruction>& listed() const { return listed_; }
  size_t place(size_t id) const { return find(id).place; }
  int64_t times(size_t listed) const;
  /// Places among the stored instructions, those of a loop twice if it runs more than once:
  /// whatever is alive together in the program is alive together here.
  std::vector<size_t> excerpt() const;
  /// Bytes that the instructions are stored in.
  int64_t bytes() const { return static_cast<int64_t>(listed_.size() * sizeof(Instruction)); }

 private:
  struct Found {
    size_t place = 0;
    int later = 0;  // micro-batches
  };
  Found find(size_t id) const;

  std::vector<Instruction> listed_;
  std::vector<ProgramLoop> loops_;
  size_t again_ = 0;  // instructions of all rounds but the first ones
};

}  // namespace trainyard::engine
