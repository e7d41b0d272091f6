#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "common/base/clock.h"
#include "operator/kube/api_error.h"
#include "operator/kube/deferrals.h"
#include "operator/kube/resource.h"
#include "operator/kube/token_bucket.h"
#include "operator/kube/transport.h"

namespace trainyard::kube {

/// One page of a list.
struct ListPage {
  std::vector<nlohmann::json> items;  ///< whole objects, but for metadata.managedFields
  std::string resource_version;       ///< of the whole list
  std::string next;  ///< continue token: pass it to get the next page; empty: this is the last
};

/// Of a list's or watch's objects.
enum class Parts {
  kAll,
  kMetadata,  ///< metadata alone, so that large objects cost nothing; a server may send all
};

struct ListOptions {
  std::string label_selector;
  std::string field_selector;
  int64_t limit = 500;           ///< items a page at most; 0: everything at once
  std::string next;              ///< ListPage::next of the page before
  std::string resource_version;  ///< "": the newest state; "0": any (cheap, perhaps old)
  Parts parts = Parts::kAll;
};

/// Preconditions: the server refuses with kConflict where the object is another one by now.
struct Preconditions {
  std::string uid;               ///< empty: any
  std::string resource_version;  ///< empty: any
};

enum class DryRun { kNo, kServer };

/// What the server does about fields its schema does not know.
enum class FieldValidation { kDefault, kStrict };

struct WriteOptions {
  DryRun dry_run = DryRun::kNo;
  FieldValidation field_validation = FieldValidation::kDefault;
};

enum class Propagation { kDefault, kOrphan, kBackground, kForeground };

struct DeleteOptions {
  Preconditions preconditions;
  Propagation propagation = Propagation::kDefault;
  std::optional<int64_t> grace_seconds;  ///< nothing: the object's own
  DryRun dry_run = DryRun::kNo;
};

struct WatchOptions {
  std::string label_selector;
  std::string field_selector;
  std::string resource_version;  ///< events after this one
  Parts parts = Parts::kAll;
  int64_t timeout_seconds = 300;  ///< the server ends the stream then
  Duration idle{};                ///< nothing for so long (bookmarks come each minute): kDeadline
  std::stop_token stop;
};

enum class EventType { kAdded, kModified, kDeleted, kBookmark };

struct WatchEvent;

/// A running watch. One thread reads; destruction ends it.
class Watch {
 public:
  explicit Watch(std::unique_ptr<LineStream> lines);
  Watch(Watch&&) noexcept = default;
  Watch& operator=(Watch&&) noexcept = default;
  ~Watch() = default;

  /// The next event; nothing when the server has ended the watch in order. Blocks for at most
  /// WatchOptions::idle. An ERROR event is an error with what its Status says; a line that is no
  /// event is kUnknown with status 200. After an error the watch is over.
  ApiResult<std::optional<WatchEvent>> next();

 private:
  std::unique_ptr<LineStream> lines_;
};

/// For metrics: one call that ended. Watches are reported when they open.
struct CallReport {
  Method method = Method::kGet;
  int status = 0;   ///< HTTP; 0: no answer
  Duration took{};  ///< without the wait for a turn
};

/// The API server's verbs. Objects go in and come out as JSON; every failure is an ApiError with
/// what the server said. Nothing is retried here; a call that the server wants later is refused
/// here until then, with kTooManyRequests and the time that is left. Bodies, depth and time are
/// bounded. Several may share a transport (leader election has one without a limiter). Thread-safe.
class Client {
 public:
  struct Options {
    /// Of each call that reads, but a watch, without the wait for a turn.
    Duration timeout = std::chrono::seconds(15);
    /// Of each change. An API server gives an admission webhook up to 30 s and then may go on
    /// without its answer; a change that is given up sooner never happens in a cluster with such a
    /// webhook.
    Duration write_timeout = std::chrono::seconds(35);
    /// Whose turns are awaited before each call; nullptr: none. Outlives the client.
    TokenBucket* limiter = nullptr;
    /// Ends all calls and waits with kNoAnswer / kAborted.
    std::stop_token stop;
    /// Asked right before each change is sent; false: it is not, kNoAnswer / kAborted. May be
    /// empty; must be thread-safe.
    std::function<bool()> may_write;
    /// Called after each call, from the calling thread; may be empty. Must be thread-safe.
    std::function<void(const CallReport&)> on_call;
  };

  /// `transport` and `clock` outlive the client.
  Client(Transport& transport, const Clock& clock, Options options);

  ApiResult<nlohmann::json> get(const Resource& resource, const ObjectName& name) const;

  /// One page of one namespace, or of all where `ns` is empty.
  ApiResult<ListPage> list(const Resource& resource, std::string_view ns,
                           const ListOptions& options) const;

  /// The object as stored. `object` carries metadata.name; apiVersion and kind may be left out.
  ApiResult<nlohmann::json> create(const Resource& resource, std::string_view ns,
                                   const nlohmann::json& object,
                                   const WriteOptions& options = {}) const;

  /// Replaces the object; compare-and-swap where it carries metadata.resourceVersion (and uid).
  ApiResult<nlohmann::json> update(const Resource& resource, const nlohmann::json& object,
                                   const WriteOptions& options = {}) const;

  /// As update, of the subresource status alone.
  ApiResult<nlohmann::json> update_status(const Resource& resource, const nlohmann::json& object,
                                          const WriteOptions& options = {}) const;

  /// Merges `change` (RFC 7386: null removes) into the object if the preconditions hold.
  ApiResult<nlohmann::json> merge_patch(const Resource& resource, const ObjectName& name,
                                        const nlohmann::json& change,
                                        const Preconditions& preconditions,
                                        const WriteOptions& options = {}) const;

  /// Asks for deletion. The reply is the object as it is now (it may go on to exist, terminating)
  /// or a Status object where it is gone already.
  ApiResult<nlohmann::json> remove(const Resource& resource, const ObjectName& name,
                                   const DeleteOptions& options) const;

  /// Opens a watch with bookmarks. An error is the answer's own: kExpired or kGone, kForbidden ...
  ApiResult<Watch> watch(const Resource& resource, std::string_view ns,
                         const WatchOptions& options) const;

  /// GET of a path that is no resource ("/version", "/readyz"); the JSON that it answers with.
  ApiResult<nlohmann::json> get_path(std::string_view path) const;

 private:
  ApiResult<nlohmann::json> call(Request request) const;
  ApiResult<nlohmann::json> put(const Resource& resource, std::string_view subresource,
                                const nlohmann::json& object, const WriteOptions& options) const;
  ApiResult<Response> exchange(const Request& request) const;
  Status await_turn(std::stop_token stop) const;
  std::optional<ApiError> deferred(const Request& request) const;
  ApiError refused(const Request& request, int status, std::string_view body,
                   std::optional<Duration> retry_after) const;

  Transport& transport_;
  const Clock& clock_;
  Options options_;
  mutable Deferrals deferrals_;
};

}  // namespace trainyard::kube
