#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/child_process.h"

namespace trainyard::testing_support {

/// Does for the pods of a namespace what a kubelet does, but for images: each pod that has a node
/// gets its volumes as folders, its token from the API server, its init containers run one after
/// the other, and one process in place of its container `trainer`; what becomes of that is told in
/// the pod's status. For pods on nodes that nobody else plays the kubelet of. Driven by step().
class PodRunner {
 public:
  using Json = nlohmann::json;
  struct Options {
    /// kubectl in the pods' namespace; its output. Must not fail.
    std::function<std::string(const std::vector<std::string>&)> kubectl;
    /// What `kubectl get ... -o json` prints; null when it failed.
    std::function<Json(const std::vector<std::string>&)> get;
    std::filesystem::path folder;
    std::map<std::string, std::string> environment;  ///< over that of the pod
  };

  explicit PodRunner(Options options) : options_(std::move(options)) {}

  /// What runs from now on in place of an image without a command of its own.
  void set_entrypoint(std::vector<std::string> entrypoint) { entrypoint_ = std::move(entrypoint); }

  /// The same for one image.
  void set_image(const std::string& image, std::vector<std::string> entrypoint) {
    images_[image] = std::move(entrypoint);
  }

  /// One look: starts what is new, reports what has ended, ends what is deleted.
  void step();

  /// As kubelets do from time to time: brings tokens and configuration in the volumes of all pods
  /// up to date.
  void refresh_volumes();

  /// Pid of the pod's process; -1 where it has none.
  pid_t pid_of(const std::string& pod) const;
  /// What the pod's process has printed so far.
  std::string output_of(const std::string& pod) const;
  /// Where a claim's files are: the same for all pods.
  std::filesystem::path claim(const std::string& name) const { return options_.folder / name; }

  /// From now on this pod gets that token in place of a good one (for pods not started yet: all).
  void forge_token(std::string token) { forged_token_ = std::move(token); }

 private:
  struct Running {
    std::string uid;
    std::unique_ptr<ChildProcess> process;
    bool told_to_end = false;
    bool reported = false;
  };

  void start(const Json& pod);
  void report_end(const Json& pod, Running& running);
  void patch_status(const Json& pod, const Json& status) const;
  std::filesystem::path volume(const Json& pod, const Json& volume) const;
  std::filesystem::path folder_of(const std::string& pod) const;
  std::map<std::string, std::string> places_of(const Json& pod, const Json& container) const;
  ChildProcess::Spec process_of(const Json& pod, const Json& container) const;
  std::map<std::string, std::string> environment_of(const Json& pod, const Json& container) const;

  const Options options_;
  std::vector<std::string> entrypoint_;
  std::map<std::string, std::vector<std::string>> images_;  ///< entrypoints of their own
  std::map<std::string, Running> running_;                  ///< by pod name
  std::string forged_token_;
};

}  // namespace trainyard::testing_support
