#include "bench/comm/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>
#include <span>

#include "bench/comm/pattern.h"
#include "worker/comm/formulas.h"

namespace trainyard::bench {
namespace {

using comm::Communicator;
using comm::Operation;
using Clock = std::chrono::steady_clock;

constexpr int kRoot = 0;

/// Buffers of one case on one rank, and the call.
class Call {
 public:
  Call(Communicator& communicator, const Case& one)
      : comm_(communicator),
        case_(one),
        counts_(comm::even_counts(one.count(), communicator.size())),
        own_count_(counts_[static_cast<size_t>(communicator.rank())]),
        own_begin_(
            std::accumulate(counts_.begin(), counts_.begin() + communicator.rank(), int64_t{0})) {
    // What this rank's peers send it in all_to_all: its own part of each.
    gathered_counts_.assign(static_cast<size_t>(communicator.size()), own_count_);
  }

  /// What this rank puts in.
  void fill() {
    const int rank = comm_.rank();
    const auto whole = [&](int of) { return pattern_of(of, case_.count(), case_.dtype, reduce()); };
    switch (case_.op) {
      case Operation::kAllGather: {
        const auto all = whole(kRoot);
        data_.assign(all.size(), std::byte{0xA5});
        std::memcpy(data_.data() + bytes(own_begin_), all.data() + bytes(own_begin_),
                    bytes(own_count_));
        break;
      }
      case Operation::kBroadcast:
        data_ = whole(kRoot);
        if (rank != kRoot) std::fill(data_.begin(), data_.end(), std::byte{0xA5});
        break;
      case Operation::kScatter:
        if (rank == kRoot) data_ = whole(kRoot);
        other_.assign(bytes(own_count_), std::byte{0xA5});
        break;
      case Operation::kGather: {
        const auto all = whole(kRoot);
        data_.assign(all.begin() + static_cast<std::ptrdiff_t>(bytes(own_begin_)),
                     all.begin() + static_cast<std::ptrdiff_t>(bytes(own_begin_ + own_count_)));
        if (rank == kRoot) other_.assign(all.size(), std::byte{0xA5});
        break;
      }
      case Operation::kAllToAll:
        data_ = whole(rank);
        other_.assign(bytes(own_count_) * static_cast<size_t>(comm_.size()), std::byte{0xA5});
        break;
      case Operation::kPointToPoint:
        data_ = whole(rank);
        other_.assign(data_.size(), std::byte{0xA5});
        break;
      default:
        data_ = whole(rank);
    }
  }

  /// Zeros: what repeated additions leave as they are.
  void clear() {
    std::fill(data_.begin(), data_.end(), std::byte{0});
    std::fill(other_.begin(), other_.end(), std::byte{0});
  }

  Status run() { return start()->wait(); }

  /// Elements of this rank's result that are not what they must be.
  int64_t wrong() const {
    const int rank = comm_.rank();
    const auto differing = [&](const std::byte* found, const std::byte* wanted, int64_t count) {
      return differing_elements(found, wanted, count, case_.dtype);
    };
    switch (case_.op) {
      case Operation::kAllReduce:
      case Operation::kReduce: {
        if (case_.op == Operation::kReduce && rank != kRoot) return 0;
        const auto all = combined();
        return differing(data_.data(), all.data(), case_.count());
      }
      case Operation::kReduceScatter: {
        const auto all = combined();
        return differing(data_.data() + bytes(own_begin_), all.data() + bytes(own_begin_),
                         own_count_);
      }
      case Operation::kAllGather:
      case Operation::kBroadcast:
        return differing(data_.data(), pattern(kRoot).data(), case_.count());
      case Operation::kScatter:
        return differing(other_.data(), pattern(kRoot).data() + bytes(own_begin_), own_count_);
      case Operation::kGather:
        return rank == kRoot ? differing(other_.data(), pattern(kRoot).data(), case_.count()) : 0;
      case Operation::kAllToAll: {
        int64_t count = 0;
        for (int peer = 0; peer < comm_.size(); ++peer) {
          count += differing(other_.data() + bytes(own_count_ * peer),
                             pattern(peer).data() + bytes(own_begin_), own_count_);
        }
        return count;
      }
      case Operation::kPointToPoint:
        return comm_.size() == 1
                   ? 0
                   : differing(other_.data(), pattern(previous()).data(), case_.count());
      case Operation::kBarrier:
        return 0;
    }
    return 0;
  }

 private:
  size_t bytes(int64_t count) const { return static_cast<size_t>(count * size_of(case_.dtype)); }
  int next() const { return (comm_.rank() + 1) % comm_.size(); }
  int previous() const { return (comm_.rank() + comm_.size() - 1) % comm_.size(); }
  /// What is only moved is the same whatever the reduction.
  comm::ReduceOp reduce() const {
    const bool reduces = case_.op == Operation::kAllReduce || case_.op == Operation::kReduce ||
                         case_.op == Operation::kReduceScatter;
    return reduces ? case_.reduce : comm::ReduceOp::kSum;
  }
  std::vector<std::byte> pattern(int rank) const {
    return pattern_of(rank, case_.count(), case_.dtype, reduce());
  }
  std::vector<std::byte> combined() const {
    return combined_pattern(comm_.size(), case_.count(), case_.dtype, case_.reduce);
  }

  comm::WorkPtr start() {
    switch (case_.op) {
      case Operation::kAllReduce:
        return comm_.all_reduce(data_, case_.dtype, case_.reduce);
      case Operation::kReduceScatter:
        return comm_.reduce_scatter(data_, counts_, case_.dtype, case_.reduce);
      case Operation::kAllGather:
        return comm_.all_gather(data_, counts_, case_.dtype);
      case Operation::kBroadcast:
        return comm_.broadcast(data_, kRoot);
      case Operation::kReduce:
        return comm_.reduce(data_, case_.dtype, case_.reduce, kRoot);
      case Operation::kScatter:
        return comm_.scatter(data_, other_, counts_, case_.dtype, kRoot);
      case Operation::kGather:
        return comm_.gather(data_, other_, counts_, case_.dtype, kRoot);
      case Operation::kAllToAll:
        return comm_.all_to_all(data_, counts_, other_, gathered_counts_, case_.dtype);
      case Operation::kPointToPoint:
        if (comm_.size() == 1) break;
        return comm_.batch_point_to_point(
            {{comm::PointToPoint::Kind::kSend, next(), data_},
             {comm::PointToPoint::Kind::kReceive, previous(), other_}});
      case Operation::kBarrier:
        break;
    }
    return comm_.barrier();
  }

  Communicator& comm_;
  const Case& case_;
  const std::vector<int64_t> counts_;
  std::vector<int64_t> gathered_counts_;
  const int64_t own_count_;
  const int64_t own_begin_;
  std::vector<std::byte> data_;
  std::vector<std::byte> other_;
};

/// On the root two receives that nobody answers, the others waiting for its word: one ends by its
/// patience, one is taken back. Returns how many did not. What follows shows that the group is as
/// good as before.
Result<int64_t> unanswered(Communicator& communicator) {
  std::array<std::byte, 8> word{};
  if (communicator.rank() != kRoot) {
    TRAINYARD_TRY(communicator.receive(word, kRoot)->wait());
    return int64_t{0};
  }
  const auto ends_with = [](const comm::WorkPtr& work, ErrorCode code) {
    const Status ended = work->wait();
    return !ended && ended.error().code == code;
  };
  const comm::WorkPtr impatient =
      communicator.receive(word, 1, {.patience = std::chrono::milliseconds(20)});
  int64_t wrong = ends_with(impatient, ErrorCode::kDeadline) ? 0 : 1;
  const comm::WorkPtr taken_back = communicator.receive(word, 1);
  taken_back->cancel();
  if (!ends_with(taken_back, ErrorCode::kAborted)) ++wrong;
  for (int peer = 1; peer < communicator.size(); ++peer)
    TRAINYARD_TRY(communicator.send(word, peer)->wait());
  return wrong;
}

}  // namespace

Result<Sample> time_calls(int warm_up, int iterations, const std::function<Status()>& before,
                          const std::function<Status()>& one) {
  std::vector<double> us;
  us.reserve(static_cast<size_t>(iterations));
  for (int i = 0; i < warm_up + iterations; ++i) {
    TRAINYARD_TRY(before());
    const auto begin = Clock::now();
    TRAINYARD_TRY(one());
    const std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    if (i >= warm_up) us.push_back(took.count());
  }
  std::sort(us.begin(), us.end());
  Sample sample;
  sample.p50_us = us[us.size() / 2];
  sample.p99_us = us[std::min(us.size() - 1, us.size() * 99 / 100)];
  return sample;
}

Result<Sample> measure(Communicator& communicator, const Case& one, const std::vector<int>& ring) {
  Call call(communicator, one);
  call.fill();
  int64_t wrong = 0;
  if (one.check) {
    if (one.op == Operation::kPointToPoint && communicator.size() > 1) {
      TRAINYARD_ASSIGN(wrong, unanswered(communicator));
    }
    TRAINYARD_TRY(call.run());
    wrong += call.wrong();
  }
  call.clear();
  TRAINYARD_TRY(communicator.barrier()->wait());
  const int64_t before = communicator.counters().of(one.op).bytes_sent;
  const auto apart = [&]() -> Status {
    return needs_barrier(one.op) ? communicator.barrier()->wait() : Status();
  };
  TRAINYARD_ASSIGN(Sample sample,
                   time_calls(one.warm_up, one.iterations, apart, [&] { return call.run(); }));
  sample.bytes_sent =
      (communicator.counters().of(one.op).bytes_sent - before) / (one.warm_up + one.iterations);
  sample.bytes_expected = expected_bytes(one, communicator.size(), communicator.rank(), ring);
  sample.wrong = wrong;
  return sample;
}

}  // namespace trainyard::bench
