#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/types.h"

/// What is different between two checkpoints, whatever layouts wrote them.
namespace trainyard::checkpoint {

/// One tensor of either.
struct TensorComparison {
  enum class Outcome : uint8_t {
    kEqual,      ///< the same bits
    kDifferent,  ///< the same shape and type, other bits
    kOnlyInA,
    kOnlyInB,
    kOtherForm,  ///< another shape or type
  };
  std::string name;
  TensorKind kind = TensorKind::kParameter;
  Outcome outcome = Outcome::kEqual;
  int64_t elements = 0;            ///< of A, or of B where A has none
  int64_t elements_different = 0;  ///< kDifferent: with other bits
  /// kDifferent and float32: the largest |a - b|, and the largest |a - b| / max(|a|, |b|), over the
  /// elements that are finite in both.
  std::optional<double> absolute_max;
  std::optional<double> relative_max;
  int64_t not_finite = 0;  ///< of elements_different: infinite or NaN in one of both
  std::string form_a;      ///< kOtherForm: "F32 [3,4]"
  std::string form_b;
};

/// One named value beside the tensors; "" where a checkpoint has none.
struct ScalarComparison {
  std::string name;
  std::string a;
  std::string b;
  bool equal() const { return a == b; }
};

struct Comparison {
  std::vector<TensorComparison> tensors;  ///< ascending by name and kind
  std::vector<ScalarComparison> scalars;  ///< step and samplesConsumed, then the rest by name
  bool same_config = true;                ///< byte for byte; says nothing about the state

  /// Whether both hold the same training state: every tensor and scalar.
  bool equal() const;
};

/// Reads both in full, a few MiB at a time; everything read is verified. Errors: as
/// CheckpointReader::read.
Result<Comparison> compare(CheckpointReader& a, CheckpointReader& b);

}  // namespace trainyard::checkpoint
