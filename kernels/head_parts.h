#pragma once

#include <cstdint>
#include <span>

namespace trainyard::kernels {

/// Rows of columns of whole heads, `whole` [rows, columns], and what each of some ranks has of
/// them, `parts` [ranks, rows, columns / ranks]. A rank has an equal part of each segment of a
/// row's columns; rank 0 has the first.
struct HeadParts {
  int64_t rows = 0;
  std::span<const int64_t> segments;  ///< their columns, together those of a row
  int64_t ranks = 1;
  int64_t element_bytes = 4;
  void* whole = nullptr;
  void* parts = nullptr;
  bool packs = true;  ///< writes `parts`, else `whole`, and reads the other; they do not overlap
};

/// What a KernelSet implements as well where host code does not reach the memory that it works in.
class HeadPartCopies {
 public:
  virtual ~HeadPartCopies() = default;
  virtual void copy(const HeadParts& p) = 0;
};

}  // namespace trainyard::kernels
