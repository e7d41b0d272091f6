#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/program/instruction.h"

/// Internal to simulate(): collectives and messages, and when they begin and end.
namespace trainyard::engine {

/// One collective of a group, or one message of a channel, as those who have come so far know it.
struct Meeting {
  Instruction instruction;
  size_t first = 0;  ///< who began it, by place among the ranks
  size_t arrived = 0;
  int64_t level = 0;  ///< of the latest to begin it
  double began = 0;   ///< by the latest
  double sender_began = 0;
  double seconds = 0;
  int64_t bytes = 0;  ///< of a message
  double sent = 0;    ///< of a message: when its sender may write over it
  double ended = 0;
};

struct Group {
  std::vector<size_t> members;  ///< by place among the ranks
  std::vector<Meeting> meetings;

  /// Everybody has begun the `number`-th meeting, and all before it. Of a message `eager_bytes` at
  /// most, with those before it, may have left before they are received.
  void complete(size_t number, int64_t eager_bytes);
};

/// A collective or a message that a rank has begun and will wait for.
struct Pending {
  Group* group = nullptr;
  size_t meeting = 0;
  bool sends = false;

  const Meeting& what() const { return group->meetings[meeting]; }
  bool is_complete() const { return group == nullptr || what().arrived == group->members.size(); }
  /// In seconds, for this rank.
  double ended() const { return sends ? what().sent : what().ended; }
};

}  // namespace trainyard::engine
