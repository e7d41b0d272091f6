#include "worker/program/meeting.h"

#include <algorithm>

namespace trainyard::engine {

void Group::complete(size_t number, int64_t eager_bytes) {
  Meeting& meeting = meetings[number];
  const double before = number == 0 ? 0 : meetings[number - 1].ended;
  const bool is_eager = is_message(meeting.instruction.kind) && eager_bytes > 0;
  if (!is_eager || meeting.bytes > eager_bytes) {
    meeting.ended = std::max(meeting.began, before) + meeting.seconds;
    meeting.sent = meeting.ended;
    return;
  }
  meeting.sent = meeting.sender_began;
  int64_t waiting = meeting.bytes;  // with the messages before it that may not be received yet
  for (size_t earlier = number; earlier > 0; --earlier) {
    const Meeting& other = meetings[earlier - 1];
    waiting += other.bytes;
    if (earlier == number) meeting.sent = std::max(meeting.sent, other.sent);
    if (waiting <= eager_bytes) continue;
    meeting.sent = std::max(meeting.sent, other.ended);
    break;
  }
  meeting.sent += meeting.seconds;
  meeting.ended = std::max({meeting.began, before, meeting.sent});
}

}  // namespace trainyard::engine
