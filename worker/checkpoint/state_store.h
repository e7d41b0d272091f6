#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/base/error.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/rectangle.h"
#include "worker/checkpoint/types.h"

namespace trainyard::checkpoint {

/// A stored state that ranks go on from: a checkpoint on disk (CheckpointReader) or what a rank has
/// left in memory (MemorySlots). Used by one thread at a time.
class StateStore {
 public:
  virtual ~StateStore() = default;

  /// For messages: "g3-step-0000000100", "memory of rank 2, g3-step-0000000107".
  virtual std::string name() const = 0;
  /// Where it is stored, for messages: a checkpoint's directory; of memory its name().
  virtual std::string place() const = 0;
  /// Whose state it is, of which step, under which configuration. Memory has one shard, the rank's
  /// own, and lists no tensors.
  virtual const Manifest& manifest() const = 0;

  /// Puts the rectangle `where` of a float32 tensor into `out` (row-major). What is read has been
  /// verified by its hash. Errors: kNotFound (no such tensor), kInvalidData (outside of what is
  /// stored, `out` of another size, another dtype, or damage), kIo.
  virtual Status read(std::string_view name, TensorKind kind, const Rectangle& where,
                      std::span<float> out) = 0;
};

}  // namespace trainyard::checkpoint
