#pragma once

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "control/status_edit.h"
#include "operator/cluster/companions.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {

/// What stands beside one job of three nodes, and the server that it stands on.
class CompanionsTest : public testing::Test {
 protected:
  CompanionsTest() {
    job_.name = "train";
    job_.namespace_name = "n";
    job_.uid = "now";
    spec_.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
    status_.nodes.ready = 3;
  }

  /// An object of the job's name, as the server has it.
  static std::string object_of(const std::string& owner_name, const std::string& owner_uid) {
    return nlohmann::json{
        {"metadata",
         {{"name", "train"},
          {"namespace", "n"},
          {"uid", "uid-of-object"},
          {"resourceVersion", "4"},
          {"ownerReferences", nlohmann::json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                      {"kind", "TrainingJob"},
                                                      {"name", owner_name},
                                                      {"uid", owner_uid},
                                                      {"controller", true}}})}}}}
        .dump();
  }
  void taken() { refused(409, "AlreadyExists"); }
  void missing() { refused(404, "NotFound"); }
  void broken() { refused(500, "InternalError"); }
  void refused(int code, const char* reason) {
    transport_.answer(code, testing_support::status_body(code, reason, "as it is said"));
  }
  void done() { ours(); }
  void ours() { transport_.answer(200, object_of("train", "now")); }
  void left_over() { transport_.answer(200, object_of("train", "before")); }
  void somebodys() { transport_.answer(200, object_of("other", "before")); }

  Result<std::optional<control::Refusal>> keep() { return companions_.keep(job_, spec_, status_); }
  /// Kept without a fault; what it took.
  std::vector<std::string> kept() {
    const size_t before = requests().size();
    const auto reply = keep();
    if (!reply) ADD_FAILURE() << reply.error().message;
    if (reply && *reply) ADD_FAILURE() << "refused: " << (*reply)->message;
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    std::vector<std::string> all = requests();
    return {all.begin() + static_cast<std::ptrdiff_t>(before), all.end()};
  }
  /// The fault of a keep that has one.
  Error fault() {
    const auto reply = keep();
    EXPECT_FALSE(reply.has_value());
    EXPECT_EQ(transport_.left(), 0u) << "answers that nobody asked for";
    return reply.has_value() ? Error{} : reply.error();
  }
  /// Service and budget of three members stand.
  void settle() {
    done();
    done();
    EXPECT_THAT(kept(), testing::ElementsAre("POST services", "POST poddisruptionbudgets"));
  }
  /// As settle, where they are thought to stand already, and do.
  void find_settled() {
    ours();
    ours();
    done();
    EXPECT_THAT(kept(), testing::ElementsAre("GET services", "GET poddisruptionbudgets",
                                             "PATCH poddisruptionbudgets"));
  }
  nlohmann::json sent() const { return nlohmann::json::parse(transport_.last_request().body); }
  void set(api::ConditionType type) {
    control::set_condition(status_, {type, api::ConditionStatus::kTrue, "Reason", ""},
                           clock_.now());
  }
  /// "POST services", "DELETE poddisruptionbudgets" ... of all requests.
  std::vector<std::string> requests() const {
    std::vector<std::string> texts;
    for (const kube::Request& request : transport_.requests()) {
      std::string path = request.path;
      if (path.ends_with("/train")) path.erase(path.size() - std::string("/train").size());
      texts.push_back(std::string(kube::name_of(request.method)) + " " +
                      path.substr(path.rfind('/') + 1));
    }
    return texts;
  }

  testing_support::ScriptedTransport transport_;
  testing_support::ManualClock clock_;
  kube::Client client_{transport_, clock_, {}};
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  Companions companions_{client_, *logger_};
  api::ObjectMeta job_;
  api::TrainingJobSpec spec_;
  api::TrainingJobStatus status_;
};

}  // namespace trainyard::cluster
