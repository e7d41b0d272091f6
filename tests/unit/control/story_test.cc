// What is written of a job, word by word, as its life goes on: every field of the status as it
// changes, every pod made and ended, every event, and when it is looked at again. The stories are
// kept in stories/; a change that is meant is written there by TRAINYARD_WRITE_STORIES=1, and read
// by whoever reviews it.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/encode.h"
#include "tests/support/paths.h"
#include "tests/support/reporting_job.h"

namespace trainyard::control {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::make_job;
using testing_support::MemoryCluster;
using testing_support::ReportingJob;

std::filesystem::path story_file(const std::string& name) {
  return std::filesystem::path(testing_support::source_path("tests/unit/control/stories")) /
         (name + ".txt");
}

std::map<std::string, std::string> fields_of(const api::TrainingJobStatus& status) {
  std::map<std::string, std::string> fields;
  const json flat = json::parse(api::encode_status(status)).flatten();
  for (const auto& [path, value] : flat.items())
    fields[path] = value.dump();
  // It changes with every field that the API is given.
  if (fields.contains("/membership/configuration"))
    fields["/membership/configuration"] = "a hash of the spec";
  return fields;
}

/// Plays a job's life and takes it down.
class Narrator {
 public:
  using Step = std::function<void(ReportingJob&)>;

  explicit Narrator(api::TrainingJob job) : job_(std::move(job)) {
    job_.facts.now = StreamFacts();
    tell("it is applied");
  }

  /// `happens`, and what comes of it until all is at rest.
  void then(const std::string& title, const Step& happens) {
    happens(job_);
    EXPECT_TRUE(job_.settle()) << title;
    tell(title);
  }
  void after(Duration wait, const std::string& title) {
    then(title, [wait](ReportingJob& job) { job.clock.advance(wait); });
  }

  ReportingJob& job() { return job_; }
  std::string text() const { return text_.str(); }

 private:
  void tell(const std::string& title) {
    text_ << "== " << title << "\n";
    const auto writes = job_.cluster.writes();
    for (; told_writes_ < writes.size(); ++told_writes_)
      tell(writes[told_writes_]);
    if (!job_.cluster.job_exists()) return;
    const Reconciled& last = job_.last;
    if (last.requeue_after) {
      text_ << "looks again in " << std::chrono::duration<double>(*last.requeue_after).count()
            << " s\n";
    }
    if (last.finished) text_ << "finished\n";
    if (last.stopped) text_ << "stopped\n";
    if (last.refused) text_ << "refused\n";
  }

  void tell(const MemoryCluster::Write& write) {
    using Kind = MemoryCluster::Write::Kind;
    static const std::map<Kind, std::string> kVerbs = {{Kind::kCreate, "creates"},
                                                       {Kind::kDelete, "deletes"},
                                                       {Kind::kLabel, "takes the label off"},
                                                       {Kind::kEvent, "tells"},
                                                       {Kind::kDeleteJob, "deletes the job"}};
    if (write.kind != Kind::kStatus) {
      text_ << kVerbs.at(write.kind) << " " << write.what << "\n";
      return;
    }
    const auto now = fields_of(job_.cluster.status_history().at(told_statuses_++));
    text_ << "writes the status\n";
    for (const auto& [path, value] : shown_) {
      if (!now.contains(path)) text_ << "  - " << path << "\n";
    }
    for (const auto& [path, value] : now) {
      const auto before = shown_.find(path);
      if (before == shown_.end() || before->second != value) {
        text_ << "  " << path << " " << value << "\n";
      }
    }
    shown_ = now;
  }

  ReportingJob job_;
  std::ostringstream text_;
  size_t told_writes_ = 0;
  size_t told_statuses_ = 0;
  std::map<std::string, std::string> shown_;
};

/// Compares with the story of this name, or writes it.
void expect_story(const std::string& name, const std::string& told) {
  const std::filesystem::path file = story_file(name);
  if (std::getenv("TRAINYARD_WRITE_STORIES") != nullptr) {
    std::ofstream(file) << told;
    return;
  }
  std::ifstream stream(file);
  std::istringstream now(told);
  std::string wanted;
  std::string found;
  for (int line = 1; std::getline(stream, wanted); ++line) {
    ASSERT_TRUE(std::getline(now, found)) << name << ".txt:" << line << ": wanted " << wanted;
    ASSERT_EQ(found, wanted) << name << ".txt:" << line;
  }
  EXPECT_FALSE(std::getline(now, found)) << name << ".txt ends, and there is more: " << found;
}

ContainerExit exit_of(int code, std::optional<int> signal, std::string message) {
  ContainerExit exit;
  exit.exit_code = code;
  exit.signal = signal;
  exit.rank = 3;
  exit.reason = "Error";
  exit.message = std::move(message);
  return exit;
}

TEST(StoryTest, CompletesAndIsDeletedInTime) {
  auto manifest = make_job(2);
  manifest.spec.ttl_after_finished = seconds(600);
  manifest.spec.num_proc_per_node = 4;
  Narrator life(std::move(manifest));
  life.then("every pod succeeds", [](ReportingJob& job) { job.cluster.finish_all(); });
  life.after(seconds(599), "a second before its time");
  life.after(seconds(1), "its time is over");
  expect_story("completes", life.text());
}

TEST(StoryTest, FailsRestartsAndUsesUpItsBudget) {
  auto manifest = make_job(2);
  manifest.spec.failure_policy.budgets = {{api::FailureClass::kApplication, 2, seconds(3600)}};
  manifest.spec.keep_failed_pods = 1;
  Narrator life(std::move(manifest));
  for (const char* which : {"first", "second", "third"}) {
    life.then("rank 3 crashes, the " + std::string(which) + " time", [](ReportingJob& job) {
      job.clock.advance(seconds(5));
      job.cluster.finish_pod(job.member(1).name, exit_of(134, 6, "assertion failed\n\tat step 7"));
    });
    life.after(seconds(4), "the wait is over");
  }
  expect_story("fails", life.text());
}

TEST(StoryTest, ReplacesSinglePods) {
  auto manifest = make_job(3);
  manifest.spec.failure_policy.restart_strategy = api::RestartStrategy::kReplacePod;
  api::FailureRule rule;
  rule.name = "flaky";
  rule.action = api::RuleAction::kRestartJob;
  rule.count_towards_max = false;
  rule.on_exit_codes = api::OnExitCodes{};
  rule.on_exit_codes->values = {42};
  manifest.spec.failure_policy.rules.push_back(rule);
  Narrator life(std::move(manifest));
  life.then("one fails as a rule allows", [](ReportingJob& job) { job.fail(1, 42, "flaky"); });
  life.after(seconds(1), "the wait is over");
  life.then("two are lost at once", [](ReportingJob& job) {
    job.cluster.finish_pods({job.member(0).name, job.member(2).name}, exit_of(137, 9, "killed"));
  });
  life.after(seconds(4), "the wait is over");
  life.then("one is deleted by hand",
            [](ReportingJob& job) { job.cluster.delete_from_outside(job.member(1).name); });
  life.after(seconds(8), "the wait is over");
  life.then("one is gone without a trace",
            [](ReportingJob& job) { job.cluster.remove_pod(job.member(2).name); });
  life.after(seconds(16), "the wait is over");
  expect_story("replaces", life.text());
}

TEST(StoryTest, IsSuspendedAndResumed) {
  auto manifest = make_job(2);
  manifest.spec.active_deadline = seconds(1000);
  Narrator life(std::move(manifest));
  life.after(seconds(400), "it runs on");
  const auto suspend = [](bool on) {
    return [on](ReportingJob& job) {
      job.cluster.edit_spec([on](api::TrainingJobSpec& spec) { spec.suspend = on; });
    };
  };
  life.then("suspend is set", suspend(true));
  life.after(seconds(5000), "it stays so");
  life.then("suspend is taken back", suspend(false));
  life.after(seconds(1000), "it has run for activeDeadlineSeconds");
  expect_story("suspends", life.text());
}

TEST(StoryTest, ShrinksGrowsAndIsResized) {
  auto manifest = make_job(4);
  manifest.spec.elastic_policy = api::ElasticPolicy{};
  manifest.spec.elastic_policy->min_nodes = 1;
  Narrator life(std::move(manifest));
  life.then("a node is lost, and there is no other", [](ReportingJob& job) {
    job.cluster.set_capacity(3);
    job.cluster.remove_pod(job.member(3).name);
  });
  life.after(seconds(2), "the wait is over");
  life.after(seconds(3600), "it was pending too long");
  life.then("the user wants two", [](ReportingJob& job) {
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 2; });
  });
  life.then("and three", [](ReportingJob& job) {
    job.cluster.edit_spec([](api::TrainingJobSpec& spec) { spec.num_nodes = 3; });
  });
  expect_story("resizes", life.text());
}

TEST(StoryTest, AnEngineReportsStallsAndGoesOn) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace();
  Narrator life(std::move(manifest));
  life.then("every rank reports", [](ReportingJob& job) {
    job.connect();
    job.facts.now.resumed_from_step = 0;
  });
  life.then("steps are done", [](ReportingJob& job) {
    job.clock.advance(seconds(10));
    job.facts.now.p99_step_seconds = 0.25;
    job.step_to(100);
  });
  life.then("a checkpoint is committed", [](ReportingJob& job) {
    job.clock.advance(seconds(10));
    job.step_to(120);
    job.facts.now.checkpoint = CheckpointFact{110, "file:///ckpt", "abc", job.clock.now()};
  });
  life.after(seconds(3600), "no step comes any more");
  life.after(seconds(1), "the wait is over");
  life.then("its ranks have resumed", [](ReportingJob& job) {
    job.connect();
    job.facts.now.resumed_from_step = 110;
    job.step_to(111);
  });
  life.then("every pod succeeds", [](ReportingJob& job) {
    job.clock.advance(seconds(30));
    job.cluster.finish_all();
  });
  expect_story("reports", life.text());
}

TEST(StoryTest, AStallIsReportedAndEnds) {
  auto manifest = make_job(2);
  manifest.spec.engine.emplace();
  manifest.spec.progress_policy.on_stall = api::StallAction::kReport;
  Narrator life(std::move(manifest));
  life.then("steps are done", [](ReportingJob& job) {
    job.connect();
    job.facts.now.resumed_from_step = 0;
    job.facts.now.p99_step_seconds = 0.25;
    job.step_to(5);
  });
  life.after(seconds(3600), "no step comes any more");
  life.then("steps are done again", [](ReportingJob& job) { job.step_to(6); });
  expect_story("stalls", life.text());
}

TEST(StoryTest, IsRefusedAndRepaired) {
  auto manifest = make_job(2);
  Narrator life(std::move(manifest));
  life.then("a pod fails, and the quota is used up", [](ReportingJob& job) {
    job.cluster.refuse_created_pods(Refusal{api::reason::kAdmissionRefused, "exceeded quota"});
    job.fail(0, 1);
  });
  life.after(seconds(1), "the wait is over");
  life.then("there is room again",
            [](ReportingJob& job) { job.cluster.refuse_created_pods(std::nullopt); });
  expect_story("refused", life.text());
}

TEST(StoryTest, EndsBySuccessOfOneAndByAFatalExit) {
  auto manifest = make_job(2);
  manifest.spec.success_policy.rules.push_back({"0", std::nullopt});
  Narrator good(manifest);
  good.then("pod 0 succeeds",
            [](ReportingJob& job) { job.cluster.finish_pod(job.member(0).name, ContainerExit()); });
  Narrator bad(manifest);
  bad.then("pod 1 has a bad configuration", [](ReportingJob& job) { job.fail(1, 64, "bad"); });
  expect_story("ends", good.text() + bad.text());
}

TEST(StoryTest, StopsOnRequestAndResumes) {
  Narrator life(make_job(2));
  life.then("it is asked to stop",
            [](ReportingJob& job) { job.reconciler->request_stop(job.cluster.key()); });
  life.then("another controller takes it up", [](ReportingJob& job) { job.restart_controller(); });
  expect_story("stops", life.text());
}

}  // namespace
}  // namespace trainyard::control
