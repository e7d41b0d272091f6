// An operator that the network cuts off, while users and the rest of the control plane go on.
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/audited_plane.h"
#include "tests/support/operator_process.h"
#include "tests/support/plane_faults.h"
#include "tests/support/tcp_forwarder.h"

namespace trainyard::apiserver {
namespace {

using testing_support::OperatorAccess;
using testing_support::OperatorProcess;
using testing_support::TcpForwarder;

class PartitionTest : public testing_support::JobTest {
 protected:
  std::unique_ptr<OperatorProcess> start(const std::string& name, const std::string& option,
                                         const OperatorAccess& access = {}) const {
    return std::make_unique<OperatorProcess>(plane(), folder() / name,
                                             std::vector<std::string>{name_space()},
                                             std::vector<std::string>{option}, access);
  }
  OperatorAccess through() const {
    return {.server = "https://127.0.0.1:" + std::to_string(way_.port()), .token_file = {}};
  }

  TcpForwarder way_{testing_support::plane_port(plane().folder(), "api")};
};

TEST_F(PartitionTest, AnOperatorThatWasCutOffMakesUpForWhatItMissed) {
  const auto alone = start("alone", "--no-leader-elect", through());
  apply(job_manifest("train", 3));
  apply(job_manifest("paused", 1));
  ASSERT_TRUE(reaches("train", "Running")) << alone->log();
  ASSERT_TRUE(reaches("paused", "Running")) << alone->log();
  way_.cut();
  must({"delete", "pod", member("train", 1), "--wait=false"});
  patch("paused", {{"suspend", true}});
  apply(job_manifest("late", 2));
  // What happens directly after a cut may still have gone through; this is later than that.
  ASSERT_TRUE(wait_until([&] { return pods("train").size() == 2; }));
  EXPECT_EQ(condition("late", "Accepted"), "");
  EXPECT_EQ(job_status("train")["restarts"]["total"], 0);
  way_.mend();
  ASSERT_TRUE(runs("train", 3, 1)) << alone->log();
  ASSERT_TRUE(reaches("late", "Running")) << alone->log();
  ASSERT_TRUE(reaches("paused", "Suspended")) << alone->log();
  EXPECT_TRUE(pods("paused").empty());
  EXPECT_EQ(alone->stop(), 0) << alone->log();
}

TEST_F(PartitionTest, ALeaderThatIsCutOffIsReplacedAndDoesNoHarmWhenItsBytesArrive) {
  testing_support::expect_late_writers(plane(), name_space());
  auto first = start("first", "--leader-elect", through());
  apply(job_manifest("train", 3));
  ASSERT_TRUE(reaches("train", "Running")) << first->log();
  const auto second = start("second", "--leader-elect");
  must({"delete", "pod", member("train", 0), "--wait=false"});
  ASSERT_TRUE(runs("train", 3, 1)) << first->log();
  // In the middle of a restart.
  must({"delete", "pod", member("train", 2), "--wait=false"});
  way_.cut();
  ASSERT_TRUE(runs("train", 3, 2)) << second->log();
  must({"delete", "pod", member("train", 1), "--wait=false"});
  ASSERT_TRUE(runs("train", 3, 3)) << second->log();
  // It cannot renew its lease: it ends by itself, for its supervisor to start it again.
  const auto end = first->process().wait(kDeadline);
  ASSERT_TRUE(end.has_value()) << first->log();
  EXPECT_NE(end->exit_code, 0) << first->log();
  way_.mend();
  apply(job_manifest("late", 1));
  ASSERT_TRUE(reaches("late", "Running")) << second->log();
  EXPECT_TRUE(runs("train", 3, 3)) << second->log();
  EXPECT_EQ(second->stop(), 0) << second->log();
}

}  // namespace
}  // namespace trainyard::apiserver
