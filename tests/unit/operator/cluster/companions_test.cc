#include "operator/cluster/companions.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/manual_clock.h"
#include "tests/support/scripted_transport.h"

namespace trainyard::cluster {
namespace {

using kube::Method;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::status_body;

class CompanionsTest : public testing::Test {
 protected:
  CompanionsTest() {
    job_.name = "train";
    job_.namespace_name = "n";
    job_.uid = "now";
    spec_.num_nodes = 3;
    status_.membership.generation = 1;
    status_.nodes.target = 3;
  }

  /// An object of the job's name, as the server has it.
  static std::string object_of(const std::string& owner_name, const std::string& owner_uid) {
    return json{{"metadata",
                 {{"name", "train"},
                  {"namespace", "n"},
                  {"uid", "uid-of-object"},
                  {"resourceVersion", "4"},
                  {"ownerReferences", json::array({{{"apiVersion", "trainyard.dev/v1alpha1"},
                                                    {"kind", "TrainingJob"},
                                                    {"name", owner_name},
                                                    {"uid", owner_uid},
                                                    {"controller", true}}})}}}}
        .dump();
  }
  void taken() { transport_.answer(409, status_body(409, "AlreadyExists", "it is there")); }
  void done() { transport_.answer(200, object_of("train", "now")); }
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

TEST_F(CompanionsTest, WhatADeletedJobOfTheNameHasLeftMakesRoomAtOnce) {
  for (int kind = 0; kind < 2; ++kind) {
    taken();
    transport_.answer(200, object_of("train", "before"));
    done();  // the deletion
    done();  // the creation
  }
  const auto kept = companions_.keep(job_, spec_, status_);
  ASSERT_TRUE(kept.has_value()) << kept.error().message;
  EXPECT_FALSE(kept->has_value());
  EXPECT_THAT(requests(),
              ElementsAre("POST services", "GET services", "DELETE services", "POST services",
                          "POST poddisruptionbudgets", "GET poddisruptionbudgets",
                          "DELETE poddisruptionbudgets", "POST poddisruptionbudgets"));
  EXPECT_THAT(transport_.requests()[2].body, HasSubstr("uid-of-object"));
  EXPECT_THAT(transport_.requests()[6].body, HasSubstr("uid-of-object"));
}

TEST_F(CompanionsTest, ALeftoverThatDoesNotGoIsWaitedFor) {
  taken();
  transport_.answer(200, object_of("train", "before"));
  done();
  taken();
  const auto kept = companions_.keep(job_, spec_, status_);
  ASSERT_TRUE(kept.has_value()) << kept.error().message;
  ASSERT_TRUE(kept->has_value());
  EXPECT_EQ((*kept)->reason, api::reason::kNameConflict);
  EXPECT_TRUE((*kept)->passing);
}

TEST_F(CompanionsTest, WhatBelongsToAnotherIsNeverRemoved) {
  for (const std::string& found :
       {object_of("other", "before"), std::string(R"({"metadata":{"name":"train","namespace":"n",)"
                                                  R"("uid":"u","resourceVersion":"1"}})")}) {
    taken();
    transport_.answer(200, found);
    const auto kept = companions_.keep(job_, spec_, status_);
    ASSERT_TRUE(kept.has_value()) << kept.error().message;
    ASSERT_TRUE(kept->has_value());
    EXPECT_EQ((*kept)->reason, api::reason::kNameConflict);
    EXPECT_FALSE((*kept)->passing);
  }
  for (const kube::Request& request : transport_.requests())
    EXPECT_NE(request.method, Method::kDelete);
}

TEST_F(CompanionsTest, ABudgetThatCouldNotBeMadeIsTriedAgain) {
  done();   // the service
  taken();  // the budget of the job before, which ...
  transport_.answer(200, object_of("train", "before"));
  done();
  taken();  // ... a finalizer holds
  ASSERT_TRUE(companions_.keep(job_, spec_, status_).has_value());
  done();
  ASSERT_TRUE(companions_.keep(job_, spec_, status_).has_value());
  EXPECT_EQ(requests().back(), "POST poddisruptionbudgets");
  const size_t before = requests().size();
  ASSERT_TRUE(companions_.keep(job_, spec_, status_).has_value());
  EXPECT_EQ(requests().size(), before) << "now it stands";
}

}  // namespace
}  // namespace trainyard::cluster
