#include "worker/rank/state_replicas.h"

#include <algorithm>
#include <chrono>
#include <pthread.h>
#include <string_view>
#include <utility>
#include <vector>

namespace trainyard::engine {
namespace {

using checkpoint::PackedState;

/// So short that what training sends meanwhile does not wait for it.
constexpr int64_t kPieceBytes = int64_t{1} << 20;
/// Between two pieces, however slow a link is: shorter than a peer waits for one.
constexpr Duration kLongestPause = std::chrono::seconds(1);
/// How soon a rank that fetches a state sees that it is asked to stop.
constexpr Duration kStopLook = std::chrono::milliseconds(100);

std::span<std::byte> piece_of(std::span<std::byte> data, int64_t offset) {
  const auto begin = std::min(static_cast<size_t>(offset), data.size());
  return data.subspan(begin, std::min(data.size() - begin, static_cast<size_t>(kPieceBytes)));
}

/// What is only sent.
std::span<std::byte> as_sent(std::span<const std::byte> data) {
  return {const_cast<std::byte*>(data.data()), data.size()};
}

}  // namespace

/// What precedes a state on the wire; all zero: there is none.
struct StateReplicas::Frame {
  int64_t description_bytes = 0;
  int64_t data_bytes = 0;
};

StateReplicas::StateReplicas(comm::Communicator& across_nodes, checkpoint::MemorySlots& slots)
    : group_(across_nodes),
      slots_(slots),
      keeper_((group_.rank() + 1) % group_.size()),
      ward_((group_.rank() + group_.size() - 1) % group_.size()),
      thread_([this](const std::stop_token& stop) { serve(stop); }) {}

StateReplicas::~StateReplicas() {
  if (round() == Round::kSending) {
    group_.abort({ErrorCode::kAborted, "copies of states: this rank's generation ends"});
  }
  thread_.request_stop();
  thread_.join();
}

StateReplicas::Round StateReplicas::round() const {
  const std::lock_guard lock(mutex_);
  return round_;
}

Error StateReplicas::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StateReplicas::begin_round(bool has_state) {
  {
    const std::lock_guard lock(mutex_);
    sends_ = has_state ? std::optional(slots_.lend()) : std::nullopt;
    round_ = Round::kSending;
    failure_ = {};
  }
  changed_.notify_all();
}

void StateReplicas::serve(const std::stop_token& stop) {
  ::pthread_setname_np(::pthread_self(), "state-copies");
  while (true) {
    std::optional<PackedState> own;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return round_ == Round::kSending; })) return;
      own = sends_;
    }
    const Result<Round> ended = exchange(own, stop);
    const std::lock_guard lock(mutex_);
    round_ = ended ? *ended : Round::kFailed;
    if (!ended) {
      failure_ = ended.error();
      // The others wait for this rank.
      group_.abort(failure_);
    }
  }
}

Result<StateReplicas::Round> StateReplicas::exchange(const std::optional<PackedState>& own,
                                                     const std::stop_token& stop) {
  const Room room = [this]() -> Result<std::span<std::byte>> { return slots_.begin_ward(); };
  TRAINYARD_ASSIGN(const std::optional<std::string> description,
                   pass(keeper_, own, ward_, room, &stop));
  if (!description) return Round::kIncomplete;
  const Status whole =
      slots_.complete_ward(*description, own ? own->description : std::string_view(*description));
  if (whole) return own ? Round::kComplete : Round::kIncomplete;
  if (whole.error().code != ErrorCode::kInvalidData) return whole.error();
  const std::lock_guard lock(mutex_);
  failure_ = whole.error();
  return Round::kIncomplete;
}

/// Breaks off the group when the patience has ended: the group alone would let each piece of a
/// transfer wait for its peer until the group's deadline.
void StateReplicas::await_stop(const Patience& patience, const std::stop_token& over) {
  for (; !over.stop_requested(); pause(kStopLook, over)) {
    if (!patience.stop_asked()) continue;
    const auto now = std::chrono::steady_clock::now();
    if (!stop_seen_) stop_seen_ = now;
    if (now - *stop_seen_ < patience.after_stop) continue;
    group_.abort({ErrorCode::kAborted,
                  "asked to stop while it fetched a state from the memory of the next node"});
    return;
  }
}

Result<bool> StateReplicas::fetch(const checkpoint::CheckpointId& id, const Patience& patience) {
  std::jthread watch;
  if (patience.stop_asked) {
    watch = std::jthread([&](const std::stop_token& over) { await_stop(patience, over); });
  }
  std::byte wants{slots_.open(id) ? uint8_t{0} : uint8_t{1}};
  std::byte wanted{0};
  TRAINYARD_TRY(swap(keeper_, std::span(&wants, 1), ward_, std::span(&wanted, 1)));
  const std::optional<PackedState> out =
      wanted != std::byte{0} ? slots_.ward_state(id) : std::nullopt;
  const Room room = [this] { return slots_.begin(); };
  TRAINYARD_ASSIGN(const std::optional<std::string> description,
                   pass(ward_, out, keeper_, room, nullptr));
  if (wants == std::byte{0}) return false;
  if (!description) {
    return Error{ErrorCode::kNotFound, "state in memory: neither this rank nor its keeper has " +
                                           checkpoint::directory_name(id)};
  }
  TRAINYARD_TRY(slots_.complete_with(id, *description));
  return true;
}

/// Sends a state, or that there is none, while another one is received; its description, or
/// nullopt. `paced`: takes kLinkShare of the time, until this says stop; null: all of it. A rank
/// that has no room, or that receives a bad frame, breaks off the group.
Result<std::optional<std::string>> StateReplicas::pass(int to,
                                                       const std::optional<PackedState>& out,
                                                       int from, const Room& room,
                                                       const std::stop_token* paced) {
  Frame sent;
  Frame received;
  if (out) sent = {std::ssize(out->description), std::ssize(out->data)};
  TRAINYARD_TRY(swap(to, std::as_bytes(std::span(&sent, 1)), from,
                     std::as_writable_bytes(std::span(&received, 1))));
  const int64_t most = checkpoint::SlotRegion::description_bytes_max();
  std::span<std::byte> in;
  const bool comes = received.description_bytes != 0;
  // The others wait for what this rank does not send: they learn of it at once.
  const auto broken_off = [this](Error error) {
    group_.abort(error);
    return error;
  };
  if (comes) {
    const Result<std::span<std::byte>> found = room();
    if (!found) return broken_off(found.error());
    in = *found;
  }
  if (received.description_bytes < 0 || received.description_bytes > most ||
      received.data_bytes != std::ssize(in)) {
    return broken_off({ErrorCode::kInternal,
                       "copies of states: rank " + std::to_string(from) + " of " +
                           std::to_string(group_.size()) + " nodes sends " +
                           std::to_string(received.data_bytes) + " bytes with a description of " +
                           std::to_string(received.description_bytes) + ", wanted " +
                           std::to_string(in.size()) + " and at most " + std::to_string(most)});
  }
  std::string description(static_cast<size_t>(received.description_bytes), '\0');
  const std::string_view own_description = out ? out->description : std::string_view();
  TRAINYARD_TRY(swap(to, std::as_bytes(std::span(own_description)), from,
                     std::as_writable_bytes(std::span(description))));
  const std::span<std::byte> data = out ? as_sent(out->data) : std::span<std::byte>();
  Duration quickest = Duration::max();
  for (int64_t at = 0; at < std::max(sent.data_bytes, received.data_bytes); at += kPieceBytes) {
    const auto begin = std::chrono::steady_clock::now();
    TRAINYARD_TRY(swap(to, piece_of(data, at), from, piece_of(in, at)));
    // A piece may have waited for a peer that pauses: the quickest one tells what a link takes.
    quickest = std::min<Duration>(quickest, std::chrono::steady_clock::now() - begin);
    const bool more = at + kPieceBytes < std::max(sent.data_bytes, received.data_bytes);
    if (paced != nullptr && more) {
      pause(std::min<Duration>(kLongestPause, std::chrono::duration_cast<Duration>(
                                                  quickest * ((1 - kLinkShare) / kLinkShare))),
            *paced);
    }
  }
  return comes ? std::optional(std::move(description)) : std::nullopt;
}

Status StateReplicas::swap(int to, std::span<const std::byte> out, int from,
                           std::span<std::byte> in) {
  using Kind = comm::PointToPoint::Kind;
  std::vector<comm::PointToPoint> transfers;
  if (!out.empty()) transfers.push_back({Kind::kSend, to, as_sent(out)});
  if (!in.empty()) transfers.push_back({Kind::kReceive, from, in});
  if (transfers.empty()) return {};
  return group_.batch_point_to_point(std::move(transfers))->wait();
}

void StateReplicas::pause(Duration time, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, stop, time, [&stop] { return stop.stop_requested(); });
}

}  // namespace trainyard::engine
