#include "worker/comm/host/group.h"

#include <algorithm>
#include <utility>

namespace trainyard::comm {

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Error gave_up(int rank, const Error& reason) {
  const bool of_both = reason.code == ErrorCode::kConflict || reason.code == ErrorCode::kInternal;
  return {of_both ? reason.code : ErrorCode::kPeerLost,
          "rank " + std::to_string(rank) + " gave up: " + reason.message};
}

int GroupIdentity::place_of(int of_member) const {
  if (ring.empty()) return of_member;
  return static_cast<int>(std::find(ring.begin(), ring.end(), of_member) - ring.begin());
}

namespace {

Failure loss_of(int rank, const std::string& how) {
  Error error{ErrorCode::kPeerLost, "rank " + std::to_string(rank) + " is lost: " + how};
  return Failure(std::move(error), {rank});
}

}  // namespace

Group::Group(GroupIdentity identity, std::shared_ptr<WaitBoard> board)
    : identity_(std::move(identity)),
      has_own_board_(board == nullptr),
      board_(has_own_board_ ? std::make_shared<WaitBoard>(identity_.own_rank()) : std::move(board)),
      left_(static_cast<size_t>(identity_.size()), false) {}

void Group::attach(std::shared_ptr<ControlPlane> control, std::shared_ptr<Waker> waker) {
  std::optional<Failure> already;
  if (has_own_board_) board_->attach(control);
  {
    const std::lock_guard lock(mutex_);
    control_ = std::move(control);
    waker_ = std::move(waker);
    already = failure_;
  }
  if (already) wake();
}

void Group::leave() {
  std::shared_ptr<ControlPlane> control;
  std::shared_ptr<Waker> waker;
  bool in_order = false;
  std::optional<Failure> untold;
  if (!failed()) set_stalled({});
  if (has_own_board_) board_->attach(nullptr);
  {
    const std::lock_guard lock(mutex_);
    control = std::exchange(control_, nullptr);
    waker = std::exchange(waker_, nullptr);
    in_order = !failure_.has_value();
    untold = std::exchange(untold_, std::nullopt);
  }
  if (control && in_order) control->send_bye();
  if (control && untold) control->send_abort(*untold);
}

std::optional<Failure> Group::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Error Group::error() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->error : Error{ErrorCode::kInternal, "the group has not failed"};
}

void Group::wake() {
  std::shared_ptr<Waker> waker;
  {
    const std::lock_guard lock(mutex_);
    waker = waker_;
  }
  if (waker) waker->wake();
}

void Group::end(Failure failure, Failure notice, Tell tell) {
  std::shared_ptr<ControlPlane> control;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(failure);
    failed_.store(true, std::memory_order_release);
    if (tell == Tell::kNow)
      control = control_;
    else
      untold_ = notice;
  }
  // First, so that peers learn the reason before they see connections close.
  if (control) control->send_abort(notice);
  changed_.notify_all();
  wake();
}

void Group::fail(Failure failure) {
  failure.origin = identity_.own_rank();
  end(failure, failure, Tell::kNow);
}

void Group::on_abort(int member, const Failure& failure) {
  Failure notice = failure;
  if (notice.origin < 0) notice.origin = identity_.rank_of(member);
  const std::string from = "rank " + std::to_string(notice.origin);
  Failure mine = notice;
  // Why it gave up, it tells itself; that a rank is lost is for all to act on.
  mine.error = failure.error.code == ErrorCode::kPeerLost
                   ? failure.error.with_context(from + " reports")
                   : Error{ErrorCode::kAborted, from + " aborted: " + failure.error.message};
  end(std::move(mine), std::move(notice), Tell::kOnLeaving);
}

void Group::on_lost(int member, const std::string& how) {
  const int rank = identity_.rank_of(member);
  fail(loss_of(rank, how));
}

void Group::on_bye(int member) {
  {
    const std::lock_guard lock(mutex_);
    left_[static_cast<size_t>(member)] = true;
    any_left_.store(true, std::memory_order_release);
  }
  changed_.notify_all();
  wake();
}

void Group::on_waiting(int member, const WaitReport& report) {
  const std::vector<int>& ranks = identity_.global_ranks;
  const auto stranger = std::find_if(report.ranks.begin(), report.ranks.end(), [&](int awaited) {
    return std::find(ranks.begin(), ranks.end(), awaited) == ranks.end();
  });
  if (stranger != report.ranks.end()) {
    on_lost(member, "it waits for rank " + std::to_string(*stranger) +
                        ", which is not in a group of " + std::to_string(identity_.size()) +
                        ": what came is damaged");
    return;
  }
  board_->on_waiting(identity_.rank_of(member), report);
}

bool Group::left(int member) const {
  const std::lock_guard lock(mutex_);
  return left_[static_cast<size_t>(member)];
}

Failure Group::verdict_on(int member, std::chrono::milliseconds patience, const std::string& how) {
  const int rank = identity_.rank_of(member);
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience,
                    [&] { return failure_.has_value() || left_[static_cast<size_t>(member)]; });
  if (failure_) return *failure_;
  const std::string why = left_[static_cast<size_t>(member)]
                              ? "it has left the group (its communicator was destroyed)"
                              : how;
  return loss_of(rank, why);
}

std::vector<int> Group::ranks_of(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int member : members)
    ranks.push_back(identity_.rank_of(member));
  return ranks;
}

void Group::put_on_board() {
  const bool waits = waiting_threads_.load(std::memory_order_seq_cst) > 0;
  board_->set_waiting(identity_.id, waits ? stalled_for_ : std::vector<int>());
}

void Group::set_stalled(const std::vector<int>& members) {
  const std::lock_guard lock(wait_mutex_);
  if (members.empty() && stalled_for_.empty()) return;
  stalled_for_ = ranks_of(members);
  stalled_.store(!members.empty(), std::memory_order_seq_cst);
  put_on_board();
}

void Group::enter_wait() {
  waiting_threads_.fetch_add(1, std::memory_order_seq_cst);
  if (!stalled_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(wait_mutex_);
  put_on_board();
}

void Group::leave_wait() {
  waiting_threads_.fetch_sub(1, std::memory_order_seq_cst);
  // A rank whose wait has failed does not go on: it tells the others of its failure instead.
  if (failed() || !stalled_.load(std::memory_order_seq_cst)) return;
  const std::lock_guard lock(wait_mutex_);
  put_on_board();
}

void Group::announce_waiting() { board_->announce(); }

std::vector<int> Group::blamed(const std::vector<int>& awaited) const {
  return board_->blamed(ranks_of(awaited));
}

}  // namespace trainyard::comm
