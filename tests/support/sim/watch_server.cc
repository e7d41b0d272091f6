#include "tests/support/sim/watch_server.h"

#include <algorithm>
#include <utility>

#include "tests/support/sim/api_server.h"

namespace trainyard::sim {
namespace {

/// Bookmarks come about each minute (kube-apiserver's defaultBookmarkFrequency).
constexpr std::chrono::seconds kBookmarks{60};

std::string line_of(const char* type, const Json& object) {
  return R"({"object":)" + object.dump() + R"(,"type":")" + type + R"("})";
}

}  // namespace

void WatchServer::hold(const std::string& plural, MonoTime until) {
  seen(plural);  // what is known by now stays known
  caches_[plural].held_until = until;
}

void WatchServer::release() {
  lag_ = Duration::zero();
  for (auto& [plural, cache] : caches_)
    cache.held_until = {};
}

int64_t WatchServer::seen(const std::string& plural) {
  Cache& cache = caches_[plural];
  const MonoTime now = clock_.mono();
  if (now < cache.held_until) return cache.seen;
  while (cache.seen < store_.revision() && store_.change(cache.seen + 1).at + lag_ <= now)
    ++cache.seen;
  return cache.seen;
}

std::optional<MonoTime> WatchServer::next_sight(const std::string& plural) {
  const int64_t known = seen(plural);
  if (known == store_.revision()) return std::nullopt;
  return std::max(caches_[plural].held_until, store_.change(known + 1).at + lag_);
}

WatchStream::WatchStream(const Store& store, WatchServer& server, const Clock& clock,
                         Options options)
    : store_(store),
      server_(server),
      clock_(clock),
      options_(std::move(options)),
      position_(options_.after),
      opened_(clock.mono()),
      heard_(opened_),
      bookmark_at_(opened_ + kBookmarks) {}

const Change* WatchStream::find_next() {
  const int64_t known = server_.seen(options_.plural);
  for (; position_ < known; ++position_) {
    const Change& change = store_.change(position_ + 1);
    if (change.key.plural != options_.plural) continue;
    if (!options_.ns.empty() && change.key.ns != options_.ns) continue;
    const bool before = change.before && is_selected(*change.before, options_.selector);
    const bool now =
        change.type != kube::EventType::kDeleted && is_selected(*change.now, options_.selector);
    if (before || now) return &change;
  }
  return nullptr;
}

bool WatchStream::has_event() { return state_ == State::kOpen && find_next() != nullptr; }

bool WatchStream::is_ready() {
  if (state_ == State::kCut || state_ == State::kExpired || has_event()) return true;
  return clock_.mono() >= next_due();
}

MonoTime WatchStream::next_due() {
  const MonoTime silent = heard_ + options_.idle;
  if (state_ == State::kSilent) return silent;
  MonoTime due = std::min({bookmark_at_, opened_ + options_.timeout, silent});
  if (const auto sight = server_.next_sight(options_.plural)) due = std::min(due, *sight);
  return due;
}

WatchStream::Line WatchStream::next_line() {
  const MonoTime now = clock_.mono();
  if (state_ == State::kCut) return Error{ErrorCode::kUnavailable, "cut off within a line"};
  if (state_ == State::kExpired) {
    return std::optional<std::string>(
        line_of("ERROR", refusal(410, "Expired", "too old resource version").body));
  }
  if (state_ == State::kOpen) {
    if (const Change* change = find_next()) {
      heard_ = now;
      ++position_;
      return std::optional<std::string>(event_line(*change));
    }
    if (now >= opened_ + options_.timeout) return std::optional<std::string>();
    if (now >= bookmark_at_) {
      heard_ = now;
      bookmark_at_ = now + kBookmarks;
      return std::optional<std::string>(bookmark_line());
    }
  }
  return Error{ErrorCode::kDeadline, "nothing came for the idle time"};
}

std::string WatchStream::event_line(const Change& change) {
  const bool before = change.before && is_selected(*change.before, options_.selector);
  const bool now =
      change.type != kube::EventType::kDeleted && is_selected(*change.now, options_.selector);
  if (!now) return line_of("DELETED", *change.now);
  return line_of(before ? "MODIFIED" : "ADDED", *change.now);
}

std::string WatchStream::bookmark_line() {
  const int64_t known = std::max(position_, server_.seen(options_.plural));
  return line_of("BOOKMARK", {{"metadata", {{"resourceVersion", std::to_string(known)}}}});
}

}  // namespace trainyard::sim
