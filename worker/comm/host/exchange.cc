#include "worker/comm/host/exchange.h"

#include <algorithm>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace trainyard::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// After this long without progress the group learns whom this rank waits for.
constexpr milliseconds kStallAfter{20};
/// How long the control plane may take to say why a data connection closed.
constexpr milliseconds kVerdictPatience{1000};

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

std::string seconds_text(Clock::duration duration) {
  const auto ms = std::chrono::duration_cast<milliseconds>(duration).count();
  std::string fraction = std::to_string(ms % 1000);
  fraction.insert(0, 3 - fraction.size(), '0');
  return std::to_string(ms / 1000) + "." + fraction + " s";
}

/// True for a send that has nothing to send before more is received: it waits for no peer.
bool follows(const std::vector<Transfer>& batch, const Transfer& transfer) {
  if (transfer.after < 0) return false;
  const Transfer& source = batch[static_cast<size_t>(transfer.after)];
  return !source.done() && transfer.payload_moved == source.payload_moved;
}

/// Nothing of it has been sent or received.
bool untouched(const std::vector<Transfer>& batch) {
  return std::none_of(batch.begin(), batch.end(),
                      [](const Transfer& t) { return t.header_moved > 0; });
}

/// Into `members`, whose memory a wait that comes again does not take anew.
const std::vector<int>& awaited_members(const std::vector<Transfer>& batch,
                                        const std::vector<int>& heads, std::vector<int>& members) {
  members.clear();
  for (const int head : heads) {
    const Transfer& transfer = batch[static_cast<size_t>(head)];
    if (!follows(batch, transfer)) members.push_back(transfer.peer);
  }
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<Group> group, std::shared_ptr<Transport> transport)
    : group_(std::move(group)), transport_(std::move(transport)) {}

void Exchange::link(std::vector<Transfer>& batch) {
  heads_.clear();
  tails_.assign(static_cast<size_t>(2 * group_->identity().size()), -1);
  for (int i = 0; i < static_cast<int>(batch.size()); ++i) {
    const Transfer& transfer = batch[static_cast<size_t>(i)];
    int& tail = tails_[static_cast<size_t>(2 * transfer.peer + (transfer.sends() ? 1 : 0))];
    if (tail < 0)
      heads_.push_back(i);
    else
      batch[static_cast<size_t>(tail)].next = i;
    tail = i;
  }
}

Status Exchange::run(std::vector<Transfer>& batch, const Signature& what, const Retreat& retreat) {
  link(batch);
  idle_known_ = false;
  // Before the first byte moves: it may have been cancelled while it was queued.
  if (!group_->failed()) TRAINYARD_TRY(retreats(batch, what, retreat, {}));
  while (!heads_.empty()) {
    if (group_->failed()) return fail(*group_->failure(), what);
    TRAINYARD_ASSIGN(const bool moved, pass(batch, what));
    if (moved) {
      idle_known_ = false;
      continue;
    }
    TRAINYARD_TRY(idle(batch, what, retreat));
  }
  end_stall();
  return {};
}

Result<bool> Exchange::pass(std::vector<Transfer>& batch, const Signature& what) {
  bool moved = false;
  for (size_t lane = 0; lane < heads_.size();) {
    Transfer& transfer = batch[static_cast<size_t>(heads_[lane])];
    if (follows(batch, transfer)) {
      ++lane;
      continue;
    }
    int64_t sendable = transfer.bytes;
    if (transfer.after >= 0) {
      const Transfer& source = batch[static_cast<size_t>(transfer.after)];
      if (!source.done()) sendable = source.payload_moved;
    }
    const int64_t before = transfer.payload_moved;
    auto result = transport_->advance(transfer, sendable);
    if (!result) {
      Failure failure(std::move(result).error());
      // Who sends what no rank sends is as good as gone.
      if (failure.error.code == ErrorCode::kPeerLost) {
        failure.lost = {group_->identity().rank_of(transfer.peer)};
      }
      return fail(std::move(failure), what);
    }
    const int64_t payload = transfer.payload_moved - before;
    auto& counter = transfer.sends() ? bytes_sent_ : bytes_received_;
    if (payload != 0) counter.fetch_add(payload, std::memory_order_relaxed);
    if (*result == Transport::Moved::kPeerClosed) {
      return fail(
          group_->verdict_on(transfer.peer, kVerdictPatience, "it closed its data connection"),
          what);
    }
    moved = moved || *result == Transport::Moved::kSomething;
    if (!transfer.done()) {
      ++lane;
      continue;
    }
    moved = true;
    if (transfer.next >= 0) {
      heads_[lane] = transfer.next;
    } else {
      heads_[lane] = heads_.back();
      heads_.pop_back();
    }
  }
  return moved;
}

Status Exchange::idle(std::vector<Transfer>& batch, const Signature& what, const Retreat& retreat) {
  const auto now = Clock::now();
  if (!idle_known_) {
    idle_known_ = true;
    idle_since_ = now;
    end_stall();
  }
  const auto idle_for = now - idle_since_;
  if (group_->any_left()) TRAINYARD_TRY(check_departed(batch, what));
  if (idle_for < transport_->spin()) {
    relax();
    return {};
  }
  if (auto status = retreats(batch, what, retreat, idle_for); !status) {
    end_stall();
    return status;
  }
  const auto deadline = std::chrono::duration_cast<Clock::duration>(group_->identity().deadline);
  // Patience beyond the deadline is what the caller wants, as long as it can still retreat.
  Clock::duration limit = deadline;
  if (retreat.patience && untouched(batch)) {
    limit = std::max<Clock::duration>(limit, *retreat.patience);
  }
  if (idle_for >= limit) return silent(awaited_members(batch, heads_, awaited_), what);
  auto next_look = limit;
  if (!stalled_) {
    next_look = std::min<Clock::duration>(kStallAfter, deadline / 4);
    if (idle_for >= next_look) {
      stalled_ = true;
      group_->set_stalled(awaited_members(batch, heads_, awaited_));
      next_look = deadline / 2;
    }
  } else if (!announced_) {
    next_look = deadline / 2;
    if (idle_for >= next_look) {
      announced_ = true;
      group_->announce_waiting();
      next_look = limit;
    }
  }
  pending_.clear();
  for (const int head : heads_) {
    Transfer& transfer = batch[static_cast<size_t>(head)];
    if (!follows(batch, transfer)) pending_.push_back(&transfer);
  }
  if (retreat.patience && idle_for < *retreat.patience) {
    next_look = std::min<Clock::duration>(next_look, *retreat.patience);
  }
  transport_->wait(pending_, next_look - idle_for);
  return {};
}

Status Exchange::retreats(const std::vector<Transfer>& batch, const Signature& what,
                          const Retreat& retreat, Clock::duration idle_for) const {
  const bool cancelled =
      retreat.cancelled != nullptr && retreat.cancelled->load(std::memory_order_acquire);
  const bool late = retreat.patience && idle_for >= *retreat.patience;
  if (!cancelled && !late) return {};
  if (!untouched(batch)) return {};
  if (cancelled) {
    return Error{ErrorCode::kAborted,
                 describe(what) + ": cancelled before anything was sent or received"};
  }
  std::vector<int> ranks;
  std::vector<int> awaited;
  for (const int member : awaited_members(batch, heads_, awaited))
    ranks.push_back(group_->identity().rank_of(member));
  return Error{ErrorCode::kDeadline, describe(what) + ": nothing was sent or received within " +
                                         seconds_text(*retreat.patience) + ", awaiting " +
                                         describe_ranks(ranks)};
}

Status Exchange::check_departed(std::vector<Transfer>& batch, const Signature& what) {
  if (!transport_->goodbye_follows_data()) return {};
  for (const int head : heads_) {
    const int peer = batch[static_cast<size_t>(head)].peer;
    if (!group_->left(peer)) continue;
    // What it sent before it left is there by now: only if nothing moves once more is it missing.
    TRAINYARD_ASSIGN(const bool moved, pass(batch, what));
    if (moved) {
      idle_known_ = false;
      return {};
    }
    return fail(group_->verdict_on(peer, milliseconds{0}, ""), what);
  }
  return {};
}

Status Exchange::silent(const std::vector<int>& awaited, const Signature& what) {
  const std::vector<int> blamed = group_->blamed(awaited);
  std::vector<int> seen;
  for (const int member : awaited)
    seen.push_back(group_->identity().rank_of(member));
  std::string text = "no progress for " + seconds_text(group_->identity().deadline) +
                     ", awaiting " + describe_ranks(blamed);
  if (blamed != seen) text += " (by way of " + describe_ranks(seen) + ")";
  return fail(Failure(Error{ErrorCode::kPeerLost, text}, blamed), what);
}

Error Exchange::fail(Failure failure, const Signature& what) {
  if (!group_->failed()) {
    failure.error = failure.error.with_context(describe(what));
    group_->fail(std::move(failure));
  }
  return group_->error();
}

void Exchange::end_stall() {
  if (stalled_) group_->set_stalled({});
  stalled_ = false;
  announced_ = false;
}

}  // namespace trainyard::comm
