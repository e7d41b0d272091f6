#include "worker/program/checker.h"

#include <algorithm>
#include <map>
#include <utility>

namespace trainyard::engine {
namespace {

bool is_collective(InstructionKind kind) {
  return kind == InstructionKind::kReduce || kind == InstructionKind::kReduceControl ||
         kind == InstructionKind::kGather;
}

Error violation(int rank, size_t index, const Instruction& instruction, const std::string& rule) {
  return {ErrorCode::kInternal, "step program of rank " + std::to_string(rank) + ", instruction " +
                                    std::to_string(index) + " (" + to_string(instruction) +
                                    "): " + rule};
}

/// State of one rank's walk through its program.
class RankCheck {
 public:
  RankCheck(int rank, int chunks, const std::vector<int>& ready)
      : rank_(rank), chunks_(chunks), ready_(ready) {}

  Status walk(const StepProgram& program) {
    for (const Instruction& i : program) {
      if (i.kind == InstructionKind::kBackwardWeight) ++weights_left_[i.chunk];
    }
    for (size_t index = 0; index < program.size(); ++index) {
      const std::string rule = broken_rule(program[index]);
      if (!rule.empty()) return violation(rank_, index, program[index], rule);
    }
    for (size_t b = 0; b < ready_.size(); ++b) {
      if (!gathered_[static_cast<int>(b)] && optimized_) {
        return Error{ErrorCode::kInternal, "step program of rank " + std::to_string(rank_) +
                                               ": bucket " + std::to_string(b) +
                                               " is never gathered"};
      }
    }
    return {};
  }

 private:
  std::string broken_rule(const Instruction& i) {
    switch (i.kind) {
      case InstructionKind::kForward:
        return forward(i);
      case InstructionKind::kBackwardInput:
        return backward_input(i);
      case InstructionKind::kBackwardWeight:
        return backward_weight(i);
      case InstructionKind::kReduce:
        return reduce(i);
      case InstructionKind::kGather:
        return gather(i);
      case InstructionKind::kOptimize:
        return optimize();
      case InstructionKind::kReduceControl:
      case InstructionKind::kSnapshot:
        return "";
    }
    return "unknown kind";
  }

  std::string forward(const Instruction& i) {
    int& next = forward_next_[i.micro_batch];
    if (i.chunk != next) return "chunk " + std::to_string(next) + " must go forward first";
    ++next;
    return "";
  }

  std::string backward_input(const Instruction& i) {
    if (forward_next_[i.micro_batch] != chunks_) return "its forward is not complete";
    const auto [it, first] = backward_next_.try_emplace(i.micro_batch, chunks_ - 1);
    if (i.chunk != it->second) {
      return "chunk " + std::to_string(it->second) + " must go backward first";
    }
    --it->second;
    return "";
  }

  std::string backward_weight(const Instruction& i) {
    const auto it = backward_next_.find(i.micro_batch);
    if (it == backward_next_.end() || it->second >= i.chunk) return "its B has not run";
    if (weighted_[{i.micro_batch, i.chunk}]++ > 0) return "runs twice";
    --weights_left_[i.chunk];
    return "";
  }

  std::string reduce(const Instruction& i) {
    if (i.chunk < 0 || i.chunk >= static_cast<int>(ready_.size())) return "no such bucket";
    if (reduced_[i.chunk]++ > 0) return "reduced twice";
    for (int c = ready_[static_cast<size_t>(i.chunk)]; c < chunks_; ++c) {
      if (weights_left_[c] > 0) {
        return "chunk " + std::to_string(c) + " still adds to the bucket";
      }
    }
    return "";
  }

  std::string gather(const Instruction& i) {
    if (reduced_[i.chunk] == 0) return "gathered before it was reduced";
    if (gathered_[i.chunk]++ > 0) return "gathered twice";
    return optimized_ ? "gathered after OPT" : "";
  }

  std::string optimize() {
    if (optimized_) return "OPT runs twice";
    optimized_ = true;
    const auto gathered = static_cast<size_t>(std::count_if(
        gathered_.begin(), gathered_.end(), [](const auto& entry) { return entry.second > 0; }));
    return gathered == ready_.size() ? "" : "OPT before every bucket is gathered";
  }

  int rank_;
  int chunks_;
  const std::vector<int>& ready_;
  std::map<int, int> forward_next_;
  std::map<int, int> backward_next_;
  std::map<std::pair<int, int>, int> weighted_;
  std::map<int, int> weights_left_;
  std::map<int, int> reduced_;
  std::map<int, int> gathered_;
  bool optimized_ = false;
};

std::vector<Instruction> collectives_of(const StepProgram& program) {
  std::vector<Instruction> found;
  std::copy_if(program.begin(), program.end(), std::back_inserter(found),
               [](const Instruction& i) { return is_collective(i.kind); });
  return found;
}

}  // namespace

Status check_programs(const std::vector<StepProgram>& programs, int chunks,
                      const std::vector<int>& bucket_ready_chunk) {
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    RankCheck check(static_cast<int>(rank), chunks, bucket_ready_chunk);
    TRAINYARD_TRY(check.walk(programs[rank]));
  }
  for (size_t rank = 1; rank < programs.size(); ++rank) {
    const auto expected = collectives_of(programs[0]);
    const auto found = collectives_of(programs[rank]);
    for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
      if (i < expected.size() && i < found.size() && expected[i] == found[i]) continue;
      const Instruction& at = i < found.size() ? found[i] : expected[i];
      return violation(static_cast<int>(rank), i, at,
                       "collective " + std::to_string(i) + " differs from rank 0's: deadlock");
    }
  }
  return {};
}

}  // namespace trainyard::engine
