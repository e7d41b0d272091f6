#pragma once

#include <string>
#include <vector>

#include "common/base/error.h"

namespace trainyard::checkpoint {

/// How the ranks of one generation agree about a checkpoint: the only thing this library asks of a
/// communicator. Every call is collective: all ranks make the same calls in the same order. Calls
/// block, but never longer than the implementation's own deadline; an error, of whatever kind, is
/// final for the group. Used from one thread at a time.
class CommitGroup {
 public:
  virtual ~CommitGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// On rank 0: every rank's record in rank order. On the others: empty.
  virtual Result<std::vector<std::string>> gather(std::string own_record) = 0;
  /// Rank 0's text, on every rank; what the others pass is ignored.
  virtual Result<std::string> broadcast(std::string from_rank_0) = 0;
  /// True on every rank when any rank passed true (logical or).
  virtual Result<bool> any(bool failed) = 0;
};

/// The group of one: for single-process runs and tools.
class SoloCommitGroup final : public CommitGroup {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  Result<std::vector<std::string>> gather(std::string own_record) override {
    return std::vector<std::string>{std::move(own_record)};
  }
  Result<std::string> broadcast(std::string from_rank_0) override { return from_rank_0; }
  Result<bool> any(bool failed) override { return failed; }
};

}  // namespace trainyard::checkpoint
