#pragma once

#include <mutex>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include "operator/kube/transport.h"

namespace trainyard::testing_support {

/// One Lease behind the API server's paths, with its compare-and-swap; may be cut off. For the
/// logic of the election; the tier `apiserver` has the real thing. Thread-safe.
class LeaseServer final : public kube::Transport {
 public:
  Result<kube::Response> send(const kube::Request& request,
                              const kube::Patience& /*patience*/) override {
    const std::lock_guard lock(mutex_);
    ++requests_;
    if (cut_off_) return Error{ErrorCode::kUnavailable, "cut off"};
    const auto answer = [](int status, const nlohmann::json& body) {
      return kube::Response{status, body.dump(), {}};
    };
    const auto refuse = [&](int status, const char* reason) {
      return answer(status, {{"kind", "Status"},
                             {"status", "Failure"},
                             {"reason", reason},
                             {"code", status},
                             {"message", reason}});
    };
    if (request.method == kube::Method::kPost) {
      if (lease_) return refuse(409, "AlreadyExists");
      lease_ = nlohmann::json::parse(request.body);
      return answer(201, stamped());
    }
    if (!lease_) return refuse(404, "NotFound");
    if (request.method == kube::Method::kGet) return answer(200, *lease_);
    const nlohmann::json update = nlohmann::json::parse(request.body);
    if (update["metadata"]["resourceVersion"] != (*lease_)["metadata"]["resourceVersion"]) {
      return refuse(409, "Conflict");
    }
    lease_ = update;
    return answer(200, stamped());
  }
  Result<kube::Opened> open(const kube::Request& /*request*/,
                            const kube::Patience& /*patience*/) override {
    return Error{ErrorCode::kUnavailable, "no watches here"};
  }

  nlohmann::json spec() const {
    const std::lock_guard lock(mutex_);
    return lease_ ? (*lease_)["spec"] : nlohmann::json();
  }
  void cut_off(bool cut) {
    const std::lock_guard lock(mutex_);
    cut_off_ = cut;
  }
  /// Somebody deletes the Lease.
  void remove() {
    const std::lock_guard lock(mutex_);
    lease_.reset();
  }
  int requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  const nlohmann::json& stamped() {
    (*lease_)["metadata"]["resourceVersion"] = std::to_string(++version_);
    (*lease_)["metadata"]["uid"] = "lease-uid";
    return *lease_;
  }

  mutable std::mutex mutex_;
  std::optional<nlohmann::json> lease_;
  int version_ = 0;
  int requests_ = 0;
  bool cut_off_ = false;
};

}  // namespace trainyard::testing_support
