#include "operator/kube/client.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/kube/json_text.h"
#include "operator/kube/uri.h"
#include "operator/kube/watch_event.h"

namespace trainyard::kube {
namespace {

using nlohmann::json;

constexpr char kJson[] = "application/json";
constexpr char kMergePatch[] = "application/merge-patch+json";
/// An API server answers a watch at once, or after the three seconds that it waits for a newer
/// resourceVersion.
constexpr Duration kWatchHeadMax = std::chrono::seconds(30);

bool is_success(int status) { return status >= 200 && status < 300; }

/// The Accept header that asks for no more than these parts, of objects wrapped in `type`.
std::string accepted(Parts parts, std::string_view type) {
  if (parts == Parts::kAll) return kJson;
  return std::string(kJson) + ";as=" + std::string(type) + ";g=meta.k8s.io;v=v1," + kJson;
}

std::string write_query(const WriteOptions& options) {
  Query query;
  if (options.dry_run == DryRun::kServer) query.add("dryRun", "All");
  if (options.field_validation == FieldValidation::kStrict) query.add("fieldValidation", "Strict");
  return query.text();
}

/// What the server wants in every object; `storage` holds the copy where something was missing.
const json& with_type(const Resource& resource, const json& object, json& storage) {
  if (object.contains("apiVersion") && object.contains("kind")) return object;
  storage = object;
  storage["apiVersion"] = api_version(resource);
  storage["kind"] = std::string(resource.kind);
  return storage;
}

ObjectName name_of_object(const json& object) {
  const json* metadata = member(object, "metadata");
  if (metadata == nullptr) return {};
  return {string_member(*metadata, "namespace"), string_member(*metadata, "name")};
}

json delete_body(const DeleteOptions& options) {
  json body = {{"apiVersion", "v1"}, {"kind", "DeleteOptions"}};
  json preconditions = json::object();
  if (!options.preconditions.uid.empty()) preconditions["uid"] = options.preconditions.uid;
  if (!options.preconditions.resource_version.empty()) {
    preconditions["resourceVersion"] = options.preconditions.resource_version;
  }
  if (!preconditions.empty()) body["preconditions"] = std::move(preconditions);
  if (options.grace_seconds) body["gracePeriodSeconds"] = *options.grace_seconds;
  if (options.dry_run == DryRun::kServer) body["dryRun"] = json::array({"All"});
  switch (options.propagation) {
    case Propagation::kDefault:
      break;
    case Propagation::kOrphan:
      body["propagationPolicy"] = "Orphan";
      break;
    case Propagation::kBackground:
      body["propagationPolicy"] = "Background";
      break;
    case Propagation::kForeground:
      body["propagationPolicy"] = "Foreground";
      break;
  }
  return body;
}

/// A patch for another UID is refused as a change of an immutable field.
bool is_about_uid(const ApiError& error) {
  return error.reason == Reason::kInvalid &&
         std::any_of(error.causes.begin(), error.causes.end(),
                     [](const Cause& cause) { return cause.field == "metadata.uid"; });
}

std::string call_of(const Request& request) {
  return std::string(name_of(request.method)) + " " + request.path;
}

ApiError bad_body(int status, std::string why) {
  return {.status = status, .reason = Reason::kUnknown, .message = std::move(why)};
}

}  // namespace

std::string_view name_of(Method method) {
  switch (method) {
    case Method::kGet:
      return "GET";
    case Method::kPost:
      return "POST";
    case Method::kPut:
      return "PUT";
    case Method::kPatch:
      return "PATCH";
    case Method::kDelete:
      return "DELETE";
  }
  return "";
}

Watch::Watch(std::unique_ptr<LineStream> lines) : lines_(std::move(lines)) {}

ApiResult<std::optional<WatchEvent>> Watch::next() {
  if (!lines_) return std::optional<WatchEvent>();
  const auto end = [&](ApiError error) {
    lines_.reset();
    return error;
  };
  const Result<std::optional<std::string>> line = lines_->next_line();
  if (!line) return end(no_answer(line.error()));
  if (!*line) {
    lines_.reset();
    return std::optional<WatchEvent>();
  }
  ApiResult<WatchEvent> event = decode_event(**line);
  if (!event) return end(std::move(event).error());
  return std::optional<WatchEvent>(*std::move(event));
}

Client::Client(Transport& transport, const Clock& clock, Options options)
    : transport_(transport), clock_(clock), options_(std::move(options)) {}

Status Client::await_turn(std::stop_token stop) const {
  const Error aborted{ErrorCode::kAborted, "asked to stop before the call was sent"};
  const auto stopped = [&] { return stop.stop_requested() || options_.stop.stop_requested(); };
  if (stopped()) return aborted;
  if (options_.limiter == nullptr) return {};
  const Duration pause = options_.limiter->reserve(clock_.mono());
  if (pause <= Duration::zero()) return {};
  std::mutex mutex;
  std::condition_variable_any changed;
  const auto wake = [&] {
    const std::lock_guard lock(mutex);
    changed.notify_all();
  };
  const std::stop_callback on_stop(std::move(stop), wake);
  const std::stop_callback on_client_stop(options_.stop, wake);
  std::unique_lock lock(mutex);
  if (changed.wait_for(lock, pause, stopped)) return aborted;
  return {};
}

std::optional<ApiError> Client::deferred(const Request& request) const {
  const std::optional<Duration> left = deferrals_.left(call_of(request), clock_.mono());
  if (!left) return std::nullopt;
  return ApiError{.status = 429,
                  .reason = Reason::kTooManyRequests,
                  .message = "not sent: the server asked to retry this call later",
                  .retry_after = left};
}

/// What the server's answer means, which may be to come later.
ApiError Client::refused(const Request& request, int status, std::string_view body,
                         std::optional<Duration> retry_after) const {
  ApiError error = decode_error(status, body, retry_after);
  const bool passing = status == 429 || status >= 500;
  if (passing && error.retry_after)
    deferrals_.defer(call_of(request), clock_.mono() + *error.retry_after);
  return error;
}

ApiResult<Response> Client::exchange(const Request& request) const {
  if (auto error = deferred(request)) return *std::move(error);
  const Status turn = await_turn({});
  if (!turn) return no_answer(turn.error());
  if (request.method != Method::kGet && options_.may_write && !options_.may_write()) {
    return no_answer({ErrorCode::kAborted, "not sent: another process may lead by now"});
  }
  const MonoTime start = clock_.mono();
  const Duration limit = request.method == Method::kGet ? options_.timeout : options_.write_timeout;
  Result<Response> answer =
      transport_.send(request, {.limit = limit, .idle = limit, .stop = options_.stop});
  if (options_.on_call) {
    options_.on_call({request.method, answer ? answer->status : 0, clock_.mono() - start});
  }
  if (!answer) return no_answer(answer.error());
  if (!is_success(answer->status)) {
    return refused(request, answer->status, answer->body, answer->retry_after);
  }
  return *std::move(answer);
}

ApiResult<json> Client::call(Request request) const {
  const ApiResult<Response> answer = exchange(request);
  if (!answer) return answer.error();
  Result<json> parsed = parse_json_text(answer->body);
  if (!parsed) return bad_body(answer->status, parsed.error().message);
  if (!parsed->is_object()) return bad_body(answer->status, "the answer is not a JSON object");
  return *std::move(parsed);
}

ApiResult<json> Client::get(const Resource& resource, const ObjectName& name) const {
  return call({.method = Method::kGet, .path = object_path(resource, name)});
}

ApiResult<json> Client::get_path(std::string_view path) const {
  return call({.method = Method::kGet, .path = std::string(path)});
}

ApiResult<ListPage> Client::list(const Resource& resource, std::string_view ns,
                                 const ListOptions& options) const {
  Query query;
  query.add("labelSelector", options.label_selector);
  query.add("fieldSelector", options.field_selector);
  if (options.limit > 0) query.add("limit", std::to_string(options.limit));
  query.add("continue", options.next);
  query.add("resourceVersion", options.resource_version);
  ApiResult<json> answer = call({.method = Method::kGet,
                                 .path = collection_path(resource, ns),
                                 .query = query.text(),
                                 .accept = accepted(options.parts, "PartialObjectMetadataList")});
  if (!answer) return std::move(answer).error();
  const json* metadata = member(*answer, "metadata");
  const auto items = answer->find("items");
  ListPage page;
  if (metadata != nullptr) {
    page.resource_version = string_member(*metadata, "resourceVersion");
    page.next = string_member(*metadata, "continue");
  }
  // Go writes an empty list as null where the slice is nil.
  const bool none = items != answer->end() && items->is_null();
  if (page.resource_version.empty() || items == answer->end() || (!items->is_array() && !none)) {
    return bad_body(200,
                    "the answer is not a list: \"items\" and metadata.resourceVersion are wanted");
  }
  if (!none) page.items = std::move(items->get_ref<json::array_t&>());
  return page;
}

ApiResult<json> Client::create(const Resource& resource, std::string_view ns, const json& object,
                               const WriteOptions& options) const {
  json storage;
  return call({.method = Method::kPost,
               .path = collection_path(resource, ns),
               .query = write_query(options),
               .body = to_json_text(with_type(resource, object, storage)),
               .content_type = kJson});
}

ApiResult<json> Client::put(const Resource& resource, std::string_view subresource,
                            const json& object, const WriteOptions& options) const {
  json storage;
  return call({.method = Method::kPut,
               .path = object_path(resource, name_of_object(object), subresource),
               .query = write_query(options),
               .body = to_json_text(with_type(resource, object, storage)),
               .content_type = kJson});
}

ApiResult<json> Client::update(const Resource& resource, const json& object,
                               const WriteOptions& options) const {
  return put(resource, "", object, options);
}

ApiResult<json> Client::update_status(const Resource& resource, const json& object,
                                      const WriteOptions& options) const {
  return put(resource, "status", object, options);
}

ApiResult<json> Client::merge_patch(const Resource& resource, const ObjectName& name,
                                    const json& change, const Preconditions& preconditions,
                                    const WriteOptions& options) const {
  json body = change;
  if (!preconditions.uid.empty()) body["metadata"]["uid"] = preconditions.uid;
  if (!preconditions.resource_version.empty()) {
    body["metadata"]["resourceVersion"] = preconditions.resource_version;
  }
  ApiResult<json> answer = call({.method = Method::kPatch,
                                 .path = object_path(resource, name),
                                 .query = write_query(options),
                                 .body = to_json_text(body),
                                 .content_type = kMergePatch});
  if (!answer && !preconditions.uid.empty() && is_about_uid(answer.error())) {
    answer.error().reason = Reason::kConflict;
  }
  return answer;
}

ApiResult<json> Client::remove(const Resource& resource, const ObjectName& name,
                               const DeleteOptions& options) const {
  return call({.method = Method::kDelete,
               .path = object_path(resource, name),
               .body = to_json_text(delete_body(options)),
               .content_type = kJson});
}

ApiResult<Watch> Client::watch(const Resource& resource, std::string_view ns,
                               const WatchOptions& options) const {
  Query query;
  query.add("watch", "true");
  query.add("allowWatchBookmarks", "true");
  query.add("labelSelector", options.label_selector);
  query.add("fieldSelector", options.field_selector);
  query.add("resourceVersion", options.resource_version);
  query.add("timeoutSeconds", std::to_string(options.timeout_seconds));
  const Request request{.method = Method::kGet,
                        .path = collection_path(resource, ns),
                        .query = query.text(),
                        .accept = accepted(options.parts, "PartialObjectMetadata")};
  if (auto error = deferred(request)) return *std::move(error);
  const Status turn = await_turn(options.stop);
  if (!turn) return no_answer(turn.error());
  const MonoTime start = clock_.mono();
  Result<Opened> opened = transport_.open(
      request,
      {.limit = std::min(kWatchHeadMax, options.idle), .idle = options.idle, .stop = options.stop});
  if (options_.on_call) {
    options_.on_call({Method::kGet, opened ? opened->status : 0, clock_.mono() - start});
  }
  if (!opened) return no_answer(opened.error());
  if (opened->status != 200) {
    if (is_success(opened->status)) return bad_body(opened->status, "no watch was opened");
    return refused(request, opened->status, opened->body, opened->retry_after);
  }
  return Watch(std::move(opened->lines));
}

}  // namespace trainyard::kube
