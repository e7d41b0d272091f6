#include "cli/run/crash_points.h"

#include <charconv>
#include <csignal>
#include <string_view>
#include <utility>

namespace trainyard::cli {

std::optional<CrashPoints::Point> CrashPoints::parse(const std::string& text) {
  Point point;
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + colon, point.write);
  const std::string_view side = std::string_view(text).substr(colon + 1);
  const bool known = side == "before" || side == "after";
  if (error != std::errc() || end != text.data() + colon || point.write < 1 || !known) {
    return std::nullopt;
  }
  point.side = side == "before" ? Side::kBefore : Side::kAfter;
  return point;
}

template <class Write>
auto CrashPoints::counted(Write write) {
  const bool due = ++writes_ == point_.write;
  if (due && point_.side == Side::kBefore) ::raise(SIGKILL);
  auto result = write();
  if (due) ::raise(SIGKILL);
  return result;
}

Result<control::Observed> CrashPoints::observe(const control::JobKey& key) {
  return cluster_.observe(key);
}
Result<std::string> CrashPoints::put_status(const control::JobKey& key, const std::string& uid,
                                            const api::TrainingJobStatus& status,
                                            const std::string& resource_version) {
  return counted([&] { return cluster_.put_status(key, uid, status, resource_version); });
}
Result<control::CreateReply> CrashPoints::create_pod(const control::PodSpec& spec) {
  return counted([&] { return cluster_.create_pod(spec); });
}
Status CrashPoints::delete_pod(const control::PodRef& pod, Duration grace) {
  return counted([&] { return cluster_.delete_pod(pod, grace); });
}
Status CrashPoints::remove_member_label(const control::PodRef& pod) {
  return counted([&] { return cluster_.remove_member_label(pod); });
}
Status CrashPoints::promote_pod(const control::PodRef& pod, int node_index) {
  return counted([&] { return cluster_.promote_pod(pod, node_index); });
}
Status CrashPoints::delete_job(const control::JobKey& key, const std::string& uid) {
  return counted([&] { return cluster_.delete_job(key, uid); });
}
Status CrashPoints::emit_event(const control::JobKey& key, const control::Event& event) {
  return counted([&] { return cluster_.emit_event(key, event); });
}
void CrashPoints::set_listener(Listener listener) { cluster_.set_listener(std::move(listener)); }

}  // namespace trainyard::cli
