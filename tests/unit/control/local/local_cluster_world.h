#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <sys/resource.h>

#include <gtest/gtest.h>

#include "common/io/file.h"
#include "control/local/local_cluster.h"
#include "control/local/pod_record.h"
#include "tests/support/local_world.h"
#include "tests/support/temporary_directory.h"

namespace trainyard::control::local {

/// While it lives, this process may have descriptors below `limit` only.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit few{std::min(limit, before_.rlim_cur), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};
/// Enough for all that these tests open at once.
inline constexpr rlim_t kDescriptorsEnough = 40;

/// A run directory and the cluster in it, whose pods are shell scripts.
class LocalClusterWorld : public ::testing::Test {
 protected:
  ~LocalClusterWorld() override {
    if (cluster_) cluster_->kill_all();
  }

  void open(const std::string& script) {
    auto opened = LocalCluster::open(testing_support::script_options(run_dir(), clock_, script));
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    cluster_ = *std::move(opened);
  }

  PodRef create(int index) {
    const auto observed = cluster_->observe(cluster_->key());
    const PodSpec spec = make_pod_spec(observed->metadata, observed->spec, index, 1, 2);
    const auto reply = cluster_->create_pod(spec);
    EXPECT_TRUE(reply.has_value()) << (reply ? "" : reply.error().message);
    return {"default", spec.name, reply ? reply->uid : ""};
  }

  std::optional<ObservedPod> look(const PodRef& ref) {
    const auto observed = cluster_->observe(cluster_->key());
    for (const ObservedPod& pod : observed->pods) {
      if (pod.uid == ref.uid) return pod;
    }
    return std::nullopt;
  }

  /// The pod once it has ended.
  ObservedPod ended(const PodRef& ref) {
    EXPECT_TRUE(testing_support::wait_until(
        [&] { return look(ref).has_value() && look(ref)->exit.has_value(); }));
    return look(ref).value_or(ObservedPod{});
  }

  bool gone(const PodRef& ref) {
    return testing_support::wait_until([&] { return !look(ref).has_value(); });
  }

  ProcessId process_of(const PodRef& ref) {
    const auto record = read_pod_record(run_dir() / "pods" / ref.name);
    EXPECT_TRUE(record.has_value());
    return record ? record->process : ProcessId{};
  }

  std::string file_of(const PodRef& ref, const std::string& name) {
    return read_file(run_dir() / "pods" / ref.name / name, 1 << 20).value_or("");
  }

  const std::filesystem::path& run_dir() const { return directory_.path(); }

  testing_support::TemporaryDirectory directory_;
  SystemClock clock_;
  std::unique_ptr<LocalCluster> cluster_;
};

}  // namespace trainyard::control::local
