#pragma once

#include <vector>

#include "common/base/error.h"
#include "common/layout/layout.h"
#include "worker/program/instruction.h"
#include "worker/program/lower.h"

/// For simulate.cc alone: what holds of a rank's program by itself.
namespace trainyard::engine {

/// What of the model a rank has.
class HeldPart {
 public:
  HeldPart(const Lowering& lowering, const layout::Coordinate& at);

  const layout::StageMap& map() const { return map_; }
  const std::vector<int>& stages() const { return stages_; }
  bool has_stage(int stage) const { return map_.pp_of(stage) == at_.pp; }
  bool has_layer(int layer) const { return has_stage(map_.stage_of(layer)); }
  /// Units whose weights a layer reads.
  const std::vector<int>& units_of(int layer) const {
    return units_of_layer_[static_cast<size_t>(layer)];
  }
  bool holds(int unit) const { return layout_.holds(unit, at_); }
  /// Whether others own what it owns of a unit that it holds.
  bool has_copies(int unit) const { return layout_.has_copies(unit, at_); }

 private:
  const layout::Layout& layout_;
  layout::Coordinate at_;
  const layout::StageMap& map_;
  std::vector<int> stages_;
  std::vector<std::vector<int>> units_of_layer_;
};

/// What kind of programs all ranks' are.
struct ProgramKind {
  bool trains = false;        ///< a rank goes backward, reduces or updates
  bool only_gathers = false;  ///< no rank does anything else
  int rounds = 0;             ///< micro-batches of the rank that has most
};

/// "step program of rank 1, instruction 3 (GATHER u1): `rule`".
Error violation(int rank, size_t index, const Instruction& instruction, const std::string& rule);
/// "step program of rank 1: `what`".
Error violation(int rank, const std::string& what);

/// Errors: kInternal for the first instruction that breaks a rule, or one that is missing.
Status check_rank(const std::vector<Instruction>& program, int rank, int micro_batches,
                  const ProgramKind& kind, const HeldPart& held, const Lowering& lowering);

}  // namespace trainyard::engine
