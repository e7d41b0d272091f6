#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/status_edit.h"
#include "operator/cluster/endpoints.h"
#include "operator/render/companions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {

using api::ConditionType;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A job of three pods, and a server whose answers are written down before.
class EndpointsTest : public testing::Test {
 protected:
  EndpointsTest() {
    observed_.metadata.name = "train";
    observed_.metadata.namespace_name = "n";
    observed_.metadata.uid = "now";
    observed_.spec.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
    for (int index = 0; index < 3; ++index)
      observed_.pods.push_back(pod(index, "p" + std::to_string(index), ""));
  }

  static control::ObservedPod pod(int index, const std::string& uid, const std::string& address) {
    control::ObservedPod made;
    made.name = "train-" + std::to_string(index) + "-" + uid;
    made.uid = uid;
    made.node_index = index;
    made.member = true;
    made.phase = control::PodPhase::kRunning;
    made.address = address;
    return made;
  }
  void address(size_t pod) { observed_.pods[pod].address = "10.0.0." + std::to_string(pod); }
  void whole() {
    for (size_t i = 0; i < observed_.pods.size(); ++i)
      address(i);
  }

  /// A slice as the server has it.
  static json stored(const std::string& name, const std::string& version, json endpoints) {
    json slice = {{"metadata",
                   {{"name", name},
                    {"namespace", "n"},
                    {"uid", "slice"},
                    {"resourceVersion", version},
                    {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                      {"kind", "TrainingJob"},
                                                      {"name", "train"},
                                                      {"uid", "now"},
                                                      {"controller", true}}})}}}};
    slice["endpoints"] = std::move(endpoints);
    return slice;
  }
  void done(const std::string& version = "1") {
    transport_.answer(200, stored(first_name(), version, json::array()).dump());
  }
  /// The job's Service as the server has it.
  json service() const {
    json object = stored("train", "3", json::array());
    object.erase("endpoints");
    object["spec"] = {{"clusterIP", "None"}};
    return object;
  }
  void answered(const json& object) { transport_.answer(200, object.dump()); }
  void refused(int code, const char* reason, const char* message = "as it is said") {
    transport_.answer(code, testing_support::status_body(code, reason, message));
  }
  void listed(json items) {
    transport_.answer(
        200, json{{"metadata", {{"resourceVersion", "9"}}}, {"items", std::move(items)}}.dump());
  }
  std::string first_name() const { return render::endpoint_slice_name(observed_.metadata, 0); }

  /// What a look takes: "POST endpointslices" ...
  std::vector<std::string> kept() {
    const size_t before = transport_.requests().size();
    endpoints_.keep(observed_, status_);
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    std::vector<std::string> texts;
    const std::vector<kube::Request> requests = transport_.requests();
    for (size_t i = before; i < requests.size(); ++i) {
      const kube::Request& request = requests[i];
      const std::string kind =
          request.path.find("/endpointslices") != std::string::npos ? "slices" : "services";
      texts.push_back(std::string(kube::name_of(request.method)) + " " + kind);
    }
    return texts;
  }
  json sent() const { return json::parse(transport_.last_request().body); }
  std::vector<std::string> hosts() const {
    std::vector<std::string> names;
    const json slice = sent();
    for (const json& one : slice["endpoints"])
      names.push_back(one["hostname"]);
    return names;
  }
  void over() {
    control::set_condition(
        status_, {ConditionType::kSuccessCriteriaMet, api::ConditionStatus::kTrue, "Reason", ""},
        clock_.now());
  }
  void settle() {
    whole();
    done();
    EXPECT_THAT(kept(), ElementsAre("POST slices"));
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  Endpoints::ListPods lists() {
    return [this](const control::Observed& /*observed*/) {
      return Result<std::vector<control::ObservedPod>>(server_pods_.value_or(observed_.pods));
    };
  }
  std::optional<std::vector<control::ObservedPod>> server_pods_;  ///< nothing: those that are seen
  Endpoints endpoints_{client_, clock_, *logger_, lists()};
  control::Observed observed_;
  api::TrainingJobStatus status_;
};

}  // namespace trainyard::cluster
