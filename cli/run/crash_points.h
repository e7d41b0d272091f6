#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "control/cluster.h"

namespace trainyard::cli {

/// "N:before" or "N:after": where `trainyard run` kills itself for tests of what its successor
/// makes of that (TRAINYARD_RUN_CRASH). Counted are status writes and all that a plan does to pods
/// and events, from 1.
inline constexpr char kEnvRunCrash[] = "TRAINYARD_RUN_CRASH";

/// A cluster whose caller is killed (SIGKILL) before or after its N-th write. Everything else is
/// the other cluster's.
class CrashPoints final : public control::Cluster {
 public:
  enum class Side { kBefore, kAfter };
  struct Point {
    int64_t write = 0;
    Side side = Side::kBefore;
  };

  /// nullopt for what is no crash point, the empty text included.
  static std::optional<Point> parse(const std::string& text);

  /// `cluster` outlives this.
  CrashPoints(control::Cluster& cluster, Point point) : cluster_(cluster), point_(point) {}

  Result<control::Observed> observe(const control::JobKey& key) override;
  Result<std::string> put_status(const control::JobKey& key, const std::string& uid,
                                 const api::TrainingJobStatus& status,
                                 const std::string& resource_version) override;
  Result<control::CreateReply> create_pod(const control::PodSpec& spec) override;
  Status delete_pod(const control::PodRef& pod, Duration grace) override;
  Status remove_member_label(const control::PodRef& pod) override;
  Status promote_pod(const control::PodRef& pod, int node_index) override;
  Status delete_job(const control::JobKey& key, const std::string& uid) override;
  Status emit_event(const control::JobKey& key, const control::Event& event) override;
  void set_listener(Listener listener) override;

 private:
  template <class Write>
  auto counted(Write write);

  control::Cluster& cluster_;
  const Point point_;
  int64_t writes_ = 0;  ///< the reconciling thread's
};

}  // namespace trainyard::cli
