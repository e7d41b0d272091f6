#include "control/status_edit.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "common/api/encode.h"
#include "common/log/misleading.h"
#include "control/policies/restart.h"

namespace trainyard::control {
namespace {

using api::ConditionStatus;
using api::ConditionType;

bool is_terminal(ConditionType type) {
  return type == ConditionType::kComplete || type == ConditionType::kFailed;
}

/// `always`: c is a byte of a character that must not be shown.
void append_escaped(std::string& out, char c, bool always) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\t') {
    out += "\\t";
  } else if (byte < 0x20 || byte == 0x7f || always) {
    out += "\\x";
    out.push_back(kDigits[byte >> 4]);
    out.push_back(kDigits[byte & 15]);
  } else {
    out.push_back(c);
  }
}

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

/// The oldest attempt that condemns no pod by its UID; the oldest of all where every one does. The
/// newest `kept` are left out.
std::vector<api::Attempt>::iterator most_dispensable(std::vector<api::Attempt>& attempts,
                                                     size_t kept) {
  const auto end = attempts.end() - static_cast<std::ptrdiff_t>(kept);
  const auto found = std::find_if(attempts.begin(), end, [](const api::Attempt& attempt) {
    return attempt.in_place.value_or(false) || attempt.pod_uid.empty();
  });
  return found == end ? attempts.begin() : found;
}

/// What a new generation meets and only a person can remove: the API server refuses its pods, or
/// their containers do not start; null: nothing is known.
const api::Condition* obstacle_of(const api::TrainingJobStatus& status) {
  const api::Condition* accepted = find_condition(status, ConditionType::kAccepted);
  if (accepted != nullptr && accepted->status == ConditionStatus::kFalse) return accepted;
  const api::Condition* running = find_condition(status, ConditionType::kRunning);
  const bool is_held = running != nullptr && (running->reason == api::reason::kImagePull ||
                                              running->reason == api::reason::kContainerConfig);
  return is_held ? running : nullptr;
}

}  // namespace

std::string bounded_text(std::string_view text, int64_t limit_bytes) {
  static constexpr std::string_view kEllipsis = "...";
  const auto limit = static_cast<size_t>(std::max<int64_t>(limit_bytes, 0));
  std::string out;
  size_t cut = 0;  // newest length at which "..." still fits and no character is split
  size_t misleading_end = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (!continues_character(c) && out.size() + kEllipsis.size() <= limit) cut = out.size();
    if (const size_t length = misleading_length(text, i); length > 0) misleading_end = i + length;
    append_escaped(out, c, i < misleading_end);
    if (out.size() > limit) {
      out.resize(cut);
      return limit < kEllipsis.size() ? out : out + std::string(kEllipsis);
    }
  }
  return out;
}

std::string shortened_text(std::string_view text, int64_t limit_bytes) {
  static constexpr std::string_view kEllipsis = "...";
  std::string whole = bounded_text(text, std::numeric_limits<int64_t>::max());
  const auto limit = static_cast<size_t>(std::max<int64_t>(limit_bytes, 0));
  if (whole.size() <= limit) return whole;
  if (limit < kEllipsis.size()) return {};
  size_t head = (limit - kEllipsis.size()) / 3;
  size_t tail = whole.size() - (limit - kEllipsis.size() - head);
  while (head > 0 && continues_character(whole[head]))
    --head;
  while (tail < whole.size() && continues_character(whole[tail]))
    ++tail;
  return whole.substr(0, head) + std::string(kEllipsis) + whole.substr(tail);
}

const api::Condition* find_condition(const api::TrainingJobStatus& status, ConditionType type) {
  const auto found = std::find_if(status.conditions.begin(), status.conditions.end(),
                                  [&](const auto& condition) { return condition.type == type; });
  return found == status.conditions.end() ? nullptr : &*found;
}

bool is_true(const api::TrainingJobStatus& status, ConditionType type) {
  const api::Condition* condition = find_condition(status, type);
  return condition != nullptr && condition->status == ConditionStatus::kTrue;
}

bool lacks_spares(const api::TrainingJobStatus& status) {
  const api::Condition* degraded = find_condition(status, ConditionType::kDegraded);
  return degraded != nullptr && degraded->status == ConditionStatus::kTrue &&
         degraded->reason == api::reason::kSparesExhausted;
}

void set_condition(api::TrainingJobStatus& status, const ConditionEdit& edit, Time now) {
  if (is_terminal(edit.type) && is_true(status, edit.type)) return;
  const std::string message = bounded_text(edit.message, api::kMaxConditionMessage);
  auto found = std::find_if(status.conditions.begin(), status.conditions.end(),
                            [&](const auto& condition) { return condition.type == edit.type; });
  if (found == status.conditions.end()) {
    status.conditions.push_back({edit.type, edit.status, status.observed_generation, now,
                                 std::string(edit.reason), message});
    return;
  }
  if (found->status == edit.status && found->reason == edit.reason && found->message == message) {
    return;
  }
  if (found->status != edit.status) found->last_transition_time = now;
  found->status = edit.status;
  found->observed_generation = status.observed_generation;
  found->reason = edit.reason;
  found->message = message;
}

void clear_condition(api::TrainingJobStatus& status, ConditionType type, std::string_view reason,
                     std::string_view message, Time now) {
  if (!is_true(status, type)) return;
  set_condition(status, {type, ConditionStatus::kFalse, reason, message}, now);
}

api::JobPhase phase_of(const api::TrainingJobStatus& status) {
  using api::JobPhase;
  if (is_true(status, ConditionType::kFailed)) return JobPhase::kFailed;
  if (is_true(status, ConditionType::kComplete)) return JobPhase::kComplete;
  const api::Condition* suspended = find_condition(status, ConditionType::kSuspended);
  if (suspended != nullptr && suspended->reason == api::reason::kSuspended) {
    return JobPhase::kSuspended;
  }
  if (is_true(status, ConditionType::kStalled)) return JobPhase::kStalled;
  if (is_true(status, ConditionType::kRestarting)) return JobPhase::kRestarting;
  if (is_true(status, ConditionType::kResizing)) return JobPhase::kResizing;
  const bool ends = is_true(status, ConditionType::kFailureTarget);
  if (ends || is_true(status, ConditionType::kRunning)) return JobPhase::kRunning;
  return status.membership.generation > 0 ? JobPhase::kStarting : JobPhase::kPending;
}

const api::Condition* cause_of_phase(const api::TrainingJobStatus& status) {
  using api::JobPhase;
  switch (phase_of(status)) {
    case JobPhase::kFailed:
      return find_condition(status, ConditionType::kFailed);
    case JobPhase::kComplete:
      return find_condition(status, ConditionType::kComplete);
    case JobPhase::kSuspended:
      return find_condition(status, ConditionType::kSuspended);
    case JobPhase::kStalled:
      return find_condition(status, ConditionType::kStalled);
    case JobPhase::kRestarting:
    case JobPhase::kResizing:
      if (const api::Condition* obstacle = obstacle_of(status)) return obstacle;
      return find_condition(status, is_true(status, ConditionType::kRestarting)
                                        ? ConditionType::kRestarting
                                        : ConditionType::kResizing);
    case JobPhase::kRunning:
      return find_condition(status, is_true(status, ConditionType::kFailureTarget)
                                        ? ConditionType::kFailureTarget
                                        : ConditionType::kRunning);
    case JobPhase::kStarting:
    case JobPhase::kPending:
      break;
  }
  // Before all have nodes nothing can run; before the API server takes pods there are none.
  for (const ConditionType type : {ConditionType::kAccepted, ConditionType::kScheduled}) {
    const api::Condition* condition = find_condition(status, type);
    if (condition != nullptr && condition->status == ConditionStatus::kFalse) return condition;
  }
  return find_condition(status, ConditionType::kRunning);
}

void describe_phase(api::TrainingJobStatus& status) {
  status.phase = phase_of(status);
  const api::Condition* cause = cause_of_phase(status);
  status.reason = cause != nullptr ? cause->reason : "";
  status.message = cause != nullptr ? shortened_text(cause->message, api::kMaxPhaseMessage) : "";
}

void push_attempt(api::TrainingJobStatus& status, api::Attempt attempt) {
  attempt.message = bounded_text(attempt.message, api::kMaxNewestAttemptMessage);
  status.attempts.push_back(std::move(attempt));
  while (static_cast<int64_t>(status.attempts.size()) > api::kMaxAttempts) {
    status.attempts.erase(status.attempts.begin());
  }
  // The newest attempt that ended carries the long message; an open one has none yet.
  bool newest_seen = false;
  for (auto it = status.attempts.rbegin(); it != status.attempts.rend(); ++it) {
    if (it->message.empty()) continue;
    if (newest_seen) it->message = bounded_text(it->message, api::kMaxAttemptMessage);
    newest_seen = true;
  }
}

void keep_attempts(api::TrainingJobStatus& status, const std::vector<api::Attempt>& kept) {
  const auto among = [](const std::vector<api::Attempt>& attempts, const api::Attempt& attempt) {
    return std::any_of(attempts.begin(), attempts.end(), [&](const api::Attempt& other) {
      return other.generation == attempt.generation && other.pod_uid == attempt.pod_uid;
    });
  };
  std::vector<api::Attempt> dropped;
  for (const api::Attempt& attempt : kept) {
    if (!among(status.attempts, attempt)) dropped.push_back(attempt);
  }
  for (size_t i = 0; i < dropped.size(); ++i) {
    const auto newest = std::prev(status.attempts.end());
    const auto oldest = std::find_if(status.attempts.begin(), newest,
                                     [&](const auto& other) { return !among(kept, other); });
    if (oldest != newest) status.attempts.erase(oldest);
  }
  status.attempts.insert(status.attempts.begin(), dropped.begin(), dropped.end());
}

void fit_status(api::TrainingJobStatus& status) {
  const auto fits = [&] {
    return static_cast<int64_t>(api::encode_status(status).size()) <= api::kMaxStatusBytes;
  };
  constexpr size_t kAlwaysKept = 2;  // the open attempt, and the newest that ended
  const size_t older = status.attempts.size() - std::min(status.attempts.size(), kAlwaysKept);
  for (size_t i = 0; i < older && !fits(); ++i)
    status.attempts[i].message.clear();
  if (fits()) return;
  for (api::Condition& condition : status.conditions)
    condition.message = bounded_text(condition.message, api::kMaxCrowdedMessage);
  while (status.attempts.size() > kAlwaysKept && !fits())
    status.attempts.erase(most_dispensable(status.attempts, kAlwaysKept));
  for (api::ClassRestarts& entry : status.restarts.classes) {
    const size_t kept = policies::kCrowdedRecentRestarts;
    if (entry.recent.size() <= kept || fits()) continue;
    entry.recent.erase(entry.recent.begin(),
                       entry.recent.end() - static_cast<std::ptrdiff_t>(kept));
  }
}

const api::Attempt* open_attempt(const api::TrainingJobStatus& status) {
  const int64_t generation = status.membership.generation;
  const auto found = std::find_if(status.attempts.begin(), status.attempts.end(), [&](auto& a) {
    return a.generation == generation && !a.end_time;
  });
  return found == status.attempts.end() ? nullptr : &*found;
}

const api::Attempt* newest_ended_attempt(const api::TrainingJobStatus& status) {
  const auto found = std::find_if(status.attempts.rbegin(), status.attempts.rend(),
                                  [](const api::Attempt& attempt) { return attempt.end_time; });
  return found == status.attempts.rend() ? nullptr : &*found;
}

}  // namespace trainyard::control
