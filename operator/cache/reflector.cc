#include "operator/cache/reflector.h"

#include <algorithm>
#include <condition_variable>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/cache/meta.h"
#include "operator/kube/json_text.h"
#include "operator/kube/watch_event.h"

namespace trainyard::cache {
namespace {

/// A server that ends watches sooner, without an event, would be asked again and again.
constexpr Duration kShortWatch = std::chrono::seconds(1);
/// So many watches in a row that gave nothing but a failure: perhaps it is their version.
constexpr int kFruitlessWatchesMax = 2;
/// So often in a row a page may not be had: perhaps it is its token, of a server that has meanwhile
/// been restored or replaced.
constexpr int kFailedPagesMax = 5;
/// So many lists in a row that show an older state than what was seen, over half a minute: it is
/// the state now, as after a restoration from a backup.
constexpr int kOldListsMax = 5;

kube::ApiError damaged(std::string message) {
  return {.status = 200, .reason = kube::Reason::kUnknown, .message = std::move(message)};
}

}  // namespace

std::string_view name_of(ReflectorState state) {
  switch (state) {
    case ReflectorState::kEmpty:
      return "Empty";
    case ReflectorState::kInitPage:
      return "InitPage";
    case ReflectorState::kInitListed:
      return "InitListed";
    case ReflectorState::kWatching:
      return "Watching";
  }
  return "";
}

Reflector::Reflector(const kube::Client& client, Sink& sink, const Clock& clock, Logger& logger,
                     Options options)
    : client_(client),
      sink_(sink),
      clock_(clock),
      logger_(logger),
      options_(std::move(options)),
      backoff_(options_.backoff, options_.random),
      page_size_(options_.page_size) {}

void Reflector::run(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  while (!stop.stop_requested()) {
    const Duration pause = step(stop);
    if (pause <= Duration::zero()) continue;
    std::unique_lock lock(mutex);
    never.wait_for(lock, stop, pause, [] { return false; });
  }
  watch_.reset();
}

Duration Reflector::step(const std::stop_token& stop) {
  switch (state_) {
    case ReflectorState::kEmpty:
      next_page_.clear();
      failed_pages_ = 0;
      list_started_ = clock_.mono();
      sink_.begin_list();
      {
        const std::lock_guard lock(mutex_);
        ++report_.lists;
      }
      return read_page();
    case ReflectorState::kInitPage:
      return read_page();
    case ReflectorState::kInitListed:
      return open_watch(stop);
    case ReflectorState::kWatching:
      return read_event();
  }
  return Duration::zero();
}

Duration Reflector::read_page() {
  const kube::ApiResult<kube::ListPage> page =
      client_.list(options_.resource, options_.ns,
                   {.label_selector = options_.label_selector,
                    .field_selector = options_.field_selector,
                    .limit = page_size_,
                    .next = next_page_,
                    .resource_version = {},
                    .parts = options_.parts});
  if (!page) {
    // Few large objects must not hide all others for ever.
    const bool too_large = page.error().no_answer == ErrorCode::kInvalidData;
    if (too_large) page_size_ = std::max<int64_t>(1, page_size_ / 4);
    ++failed_pages_;
    const bool lost = state_ == ReflectorState::kInitPage &&
                      (page.error().needs_relist() || failed_pages_ >= kFailedPagesMax);
    return fail(lost ? ReflectorState::kEmpty : state_, page.error(), "list");
  }
  failed_pages_ = 0;
  if (goes_back(*page)) {
    return fail(ReflectorState::kEmpty,
                damaged("the list shows version " + page->resource_version + ", older than " +
                        resource_version_ + " that was seen"),
                "list");
  }
  for (const nlohmann::json& object : page->items)
    sink_.list_item(object);
  if (!page->next.empty()) {
    next_page_ = page->next;
    enter(ReflectorState::kInitPage);
    return Duration::zero();
  }
  resource_version_ = page->resource_version;
  fruitless_watches_ = 0;
  sink_.end_list(list_started_, resource_version_);
  enter(ReflectorState::kInitListed);
  return Duration::zero();
}

/// Whether the list is to be refused for its age.
bool Reflector::goes_back(const kube::ListPage& page) {
  const bool older = is_later_version(resource_version_, page.resource_version);
  old_lists_ = older ? old_lists_ + 1 : 0;
  return older && old_lists_ <= kOldListsMax;
}

Duration Reflector::open_watch(const std::stop_token& stop) {
  const auto spread = static_cast<double>((options_.watch_max - options_.watch_min).count());
  const auto extra = static_cast<int64_t>(spread * options_.random());
  kube::ApiResult<kube::Watch> opened =
      client_.watch(options_.resource, options_.ns,
                    {.label_selector = options_.label_selector,
                     .field_selector = options_.field_selector,
                     .resource_version = resource_version_,
                     .parts = options_.parts,
                     .timeout_seconds = options_.watch_min.count() + extra,
                     .idle = options_.idle,
                     .stop = stop});
  if (!opened) {
    const bool lost = opened.error().needs_relist();
    return fail(lost ? ReflectorState::kEmpty : ReflectorState::kInitListed, opened.error(),
                "watch");
  }
  watch_ = *std::move(opened);
  heard_ = false;
  watch_opened_ = clock_.mono();
  enter(ReflectorState::kWatching);
  const std::lock_guard lock(mutex_);
  ++report_.watches;
  return Duration::zero();
}

Duration Reflector::read_event() {
  const kube::ApiResult<std::optional<kube::WatchEvent>> event = watch_->next();
  if (event && *event) return take_event(**event);
  watch_.reset();
  if (event) {  // ended in order
    enter(ReflectorState::kInitListed);
    const bool too_short = !heard_ && clock_.mono() - watch_opened_ < kShortWatch;
    return too_short ? backoff_.next(clock_.mono()) : Duration::zero();
  }
  fruitless_watches_ = heard_ ? 0 : fruitless_watches_ + 1;
  const bool lost = event.error().needs_relist() || fruitless_watches_ >= kFruitlessWatchesMax;
  return fail(lost ? ReflectorState::kEmpty : ReflectorState::kInitListed, event.error(), "watch");
}

Duration Reflector::take_event(const kube::WatchEvent& event) {
  std::string version = version_of(event.object);
  if (version.empty()) {
    watch_.reset();
    return fail(ReflectorState::kEmpty, damaged("an event whose object has no resourceVersion"),
                "watch");
  }
  heard_ = true;
  fruitless_watches_ = 0;
  resource_version_ = std::move(version);
  sink_.event(event.type, event.object);
  if (event.type == kube::EventType::kBookmark) return Duration::zero();
  const std::lock_guard lock(mutex_);
  ++report_.events;
  return Duration::zero();
}

Duration Reflector::fail(ReflectorState next, const kube::ApiError& error, std::string_view what) {
  const Duration pause =
      std::max(backoff_.next(clock_.mono()), error.retry_after.value_or(Duration::zero()));
  const bool stopped = error.no_answer == ErrorCode::kAborted;
  if (!stopped) {
    const bool is_expected =
        options_.right == Right::kWelcome && error.reason == kube::Reason::kForbidden;
    logger_.log(is_expected ? LogLevel::kDebug : LogLevel::kWarning,
                "lost sight of the API server's objects",
                {{"resource", options_.resource.plural},
                 {"call", what},
                 {"reason", kube::name_of(error.reason)},
                 {"status", error.status},
                 {"error", error.message},
                 {"goes_on_from", name_of(next)},
                 {"pause_seconds", std::chrono::duration<double>(pause).count()}});
  }
  enter(next);
  const std::lock_guard lock(mutex_);
  report_.failure = error;
  return pause;
}

void Reflector::enter(ReflectorState state) {
  state_ = state;
  const std::lock_guard lock(mutex_);
  report_.state = state;
  report_.failure.reset();
}

ReflectorReport Reflector::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

}  // namespace trainyard::cache
