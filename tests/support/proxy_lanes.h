#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "operator/kube/client.h"
#include "tests/support/gang_workload.h"
#include "tests/support/operator_pair.h"
#include "tests/support/proxied_operator.h"

namespace trainyard::testing_support {

/// Tests of operators behind fault proxies. Several stand side by side, each in a lane: a thread
/// and a namespace of its own. Afterwards everything that they did is judged from the audit log.
class ProxyTest : public ApiServerTest {
 protected:
  static constexpr int kLanes = 6;

  void SetUp() override;
  void TearDown() override;

  /// The API server's administrator, past all proxies.
  const kube::Client& admin() const { return *admin_; }

  /// One lane: `name` is its namespace, in which pods can be made.
  std::unique_ptr<ProxiedOperator> make_operator(const std::string& name);
  /// Two operators of a lane; their Lease lies in its namespace.
  std::unique_ptr<OperatorPair> make_pair(const std::string& name);
  /// Makes a namespace that ends with the test; its name.
  std::string make_lane(const std::string& name);

  /// Does `work(lane, item)` for the items 0 .. count - 1, one at a time in each of `lanes` lanes.
  /// What it returns are complaints; each is a failure of the test.
  void in_lanes(int64_t count, const std::function<std::string(int, int64_t)>& work,
                int lanes = kLanes);

 private:
  std::vector<std::string> violations() const;
  void await_admission() const;

  SystemClock clock_;
  std::unique_ptr<kube::Transport> transport_;
  std::unique_ptr<kube::Client> admin_;
  std::string kubeconfig_;  ///< JSON
  std::mutex mutex_;
  std::vector<std::string> lanes_;
};

}  // namespace trainyard::testing_support
