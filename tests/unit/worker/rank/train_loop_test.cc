// A rank asked to stop, wherever it is: it ends soon, with what it has trained in a checkpoint, and
// the run that goes on ends as one that nobody disturbed.

#include "worker/rank/train_loop.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/api/decode.h"
#include "common/base/unique_fd.h"
#include "tests/comm/worker/comm/world.h"
#include "tests/support/extent.h"
#include "tests/support/hanging_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_engine.h"
#include "worker/comm/factory.h"
#include "worker/data/token_writer.h"

namespace trainyard::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBytes = 257;
constexpr int64_t kSteps = 6;
constexpr int64_t kEvaluateEvery = 4;

/// Asks to stop as soon as an instruction of that kind has ended in the step after `step`.
class AskAfter final : public trace::SpanSink {
 public:
  AskAfter(trace::Activity activity, int64_t step) : activity_(activity), step_(step) {}
  void add(trace::Track /*track*/, const trace::Span& span) override {
    if (asked_ && span.activity == trace::Activity::kDataWait) ++batches_since_;
    if (span.activity == activity_ && span.step == step_) asked_ = true;
  }
  /// Micro-batches that have been taken since it asked.
  int batches_since() const { return batches_since_; }
  std::function<bool()> stop_asked() const {
    return [this] { return asked_.load(); };
  }

 private:
  const trace::Activity activity_;
  const int64_t step_;
  std::atomic<bool> asked_{false};
  std::atomic<int> batches_since_{0};
};

/// One rank's life.
struct Life {
  std::string root = "checkpoints";  ///< empty: no checkpoints
  int64_t generation = 1;
  std::optional<int64_t> parent = std::nullopt;
  std::function<bool()> stop_asked = [] { return false; };
  trace::SpanSink* spans = nullptr;
  Duration data_timeout = std::chrono::minutes(10);
  std::function<void(const std::string&)> warn = {};
  std::filesystem::path export_to = {};  ///< empty: nowhere
  int64_t evaluated_windows = 8;
  bool has_data = true;
  bool validates = true;
  int64_t steps = kSteps;
  double learning_rate = 0;  ///< 0: that of tiny_engine
  int64_t patience = 0;      ///< of early stopping; then every second step is evaluated
  /// Of a rank alone on its node; not negative: states are kept there at every step, and copied.
  int memory_fd = -1;
  std::function<void(const Error&)> failing = {};
  Status meets_across = {};  ///< an error: the rank has broken off the group across nodes
};

class TrainLoopTest : public ::testing::Test {
 protected:
  TrainLoopTest() {
    write_tokens("train", 37);
    write_tokens("heldout", 41);
  }

  void write_tokens(const std::string& name, int64_t stride) const {
    auto writer = data::TokenWriter::create(
        folder_.path() / name, {.token_bytes = 4, .vocabulary = kBytes, .tokenizer = "bytes"});
    EXPECT_TRUE(writer) << writer.error().message;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < 4096; ++i)
      tokens.push_back(static_cast<int32_t>(i * stride % kBytes));
    EXPECT_TRUE(writer->append(tokens));
    EXPECT_TRUE(writer->finish());
  }

  api::EngineSpec spec() const {
    const std::string tokens = (folder_.path() / "train").string();
    nlohmann::json engine = testing_support::tiny_engine(tokens, kSteps);
    engine["data"]["validation"] = {(folder_.path() / "heldout").string()};
    engine["evaluation"] = {{"everySteps", kEvaluateEvery}, {"sequences", 8}};
    engine["runtime"] = {{"threads", 1}};
    auto decoded = api::decode_engine(engine.dump());
    EXPECT_TRUE(decoded) << decoded.error().message;
    return *decoded;
  }

  Result<TrainOutcome> train(const Life& life, comm::Communicator& world) const {
    TRAINYARD_ASSIGN(Progress progress, Progress::map(-1));
    const auto log = Logger::to_nowhere();
    const SystemClock clock;
    comm::Groups groups = comm::Groups::of_data_ranks(world);
    groups.before_abort(life.failing);
    TrainContext context{.spec = spec(),
                         .job_uid = "test",
                         .resume = {life.generation, life.parent},
                         .groups = &groups,
                         .progress = &progress,
                         .log = log.get(),
                         .clock = &clock,
                         .data_timeout = life.data_timeout,
                         .spans = life.spans,
                         .stop_requested = life.stop_asked,
                         .warn = life.warn};
    if (!life.root.empty()) context.checkpoint_root = folder_.path() / life.root;
    context.spec.export_to.hugging_face = life.export_to.string();
    context.spec.evaluation.sequences = life.evaluated_windows;
    if (!life.has_data) context.spec.data.tokens = {(folder_.path() / "gone").string()};
    if (!life.validates) context.spec.data.validation.clear();
    context.spec.steps = life.steps;
    if (life.learning_rate > 0) context.spec.optimizer.learning_rate = life.learning_rate;
    if (life.memory_fd >= 0) {
      context.memory_fd = life.memory_fd;
      context.checkpoint_policy.memory_every_steps = 1;
      context.checkpoint_policy.memory_replicas = 1;
    }
    if (!life.meets_across) {
      TRAINYARD_ASSIGN(comm::Communicator * across, groups.across_nodes(1));
      across->abort(life.meets_across.error());
    }
    if (life.patience > 0) {
      context.spec.evaluation.early_stop_patience = life.patience;
      context.spec.evaluation.every_steps = 2;
      context.spec.learning_rate_schedule.name = api::ScheduleName::kConstant;
      context.checkpoint_policy.keep_last = 1;
    }
    return engine::train(context);
  }
  /// A run of two ranks, `life_of` each.
  std::vector<TrainOutcome> train_two(const std::function<Life(int rank)>& life_of) const {
    std::vector<TrainOutcome> outcomes(2);
    comm::testing::run_world(comm::TransportKind::kLocal, 2, [&](comm::Communicator& world) {
      const auto outcome = train(life_of(world.rank()), world);
      ASSERT_TRUE(outcome) << outcome.error().message;
      outcomes[static_cast<size_t>(world.rank())] = *outcome;
    });
    return outcomes;
  }
  /// A run of one rank.
  TrainOutcome train(const Life& life) const {
    const auto world = comm::make_communicator(
        comm::TransportKind::kLocal,
        {.endpoints = {{.rank = 0}}, .generation = life.generation, .job_uid = "test"}, {});
    EXPECT_TRUE(world) << world.error().message;
    auto outcome = train(life, **world);
    EXPECT_TRUE(outcome) << outcome.error().message;
    return outcome ? *std::move(outcome) : TrainOutcome{};
  }

  /// What is left to do after `generation` is done, and ends as if nothing had happened.
  void expect_same_end(int64_t generation) const {
    const TrainOutcome undisturbed = train({.root = "undisturbed"});
    ASSERT_TRUE(undisturbed.complete);
    const TrainOutcome resumed = train({.generation = generation + 1, .parent = generation});
    EXPECT_TRUE(resumed.complete);
    EXPECT_EQ(resumed.result.state_hash, undisturbed.result.state_hash);
    EXPECT_EQ(resumed.result.final_loss, undisturbed.result.final_loss);
    EXPECT_EQ(resumed.result.validation_loss, undisturbed.result.validation_loss);
  }

  std::string exported(const std::string& folder) const {
    std::ifstream file(folder_.path() / folder / "model.safetensors", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  const testing_support::TemporaryDirectory folder_;
};

/// What the training data teaches is wrong of the held-out data: the validation loss soon rises.
const Life kOverfits{.steps = 200, .learning_rate = 1e-2, .patience = 3};

TEST_F(TrainLoopTest, WhereTheValidationLossRisesTheRunEndsAndTheBestModelStays) {
  Life life = kOverfits;
  life.export_to = folder_.path() / "best";
  const TrainOutcome outcome = train(life);
  ASSERT_TRUE(outcome.complete);
  ASSERT_TRUE(outcome.result.stopped_early);
  ASSERT_TRUE(outcome.result.best);
  const contract::BestModel& best = *outcome.result.best;
  EXPECT_EQ(outcome.result.step, best.step + 2 * life.patience);
  EXPECT_LT(best.validation_loss, outcome.result.validation_loss);
  ASSERT_NE(best.checkpoint, "");
  EXPECT_TRUE(std::filesystem::exists(folder_.path() / "checkpoints" / best.checkpoint))
      << "though no checkpoint but the last is kept";
  // The export is of the model that a run to that step ends with.
  const TrainOutcome to_best = train({.root = "to-best",
                                      .export_to = folder_.path() / "to-best-hf",
                                      .steps = best.step,
                                      .learning_rate = life.learning_rate,
                                      .patience = 1000});
  EXPECT_FALSE(to_best.result.stopped_early);
  EXPECT_EQ(to_best.result.validation_loss, best.validation_loss);
  EXPECT_GT(exported("best").size(), 1000U);
  EXPECT_TRUE(exported("best") == exported("to-best-hf"));
}

TEST_F(TrainLoopTest, RestartsDoNotChangeWhenARunStopsEarly) {
  Life undisturbed_life = kOverfits;
  undisturbed_life.root = "undisturbed";
  const TrainOutcome undisturbed = train(undisturbed_life);
  ASSERT_TRUE(undisturbed.result.best);
  // Stopped in an evaluation, which does not count then, and between two.
  for (const int64_t step : {undisturbed.result.best->step, undisturbed.result.best->step + 3}) {
    const std::string root = "stopped-" + std::to_string(step);
    AskAfter stop(trace::Activity::kForward, step);
    Life first = kOverfits;
    first.root = root;
    first.stop_asked = stop.stop_asked();
    first.spans = &stop;
    EXPECT_FALSE(train(first).complete);
    std::vector<TrainOutcome> resumed = train_two([&](int) {
      Life life = kOverfits;
      life.root = root;
      life.generation = 2;
      life.parent = 1;
      return life;
    });
    for (const TrainOutcome& outcome : resumed) {
      EXPECT_TRUE(outcome.complete);
      EXPECT_EQ(outcome.result.step, undisturbed.result.step) << root;
      EXPECT_EQ(outcome.result.state_hash, undisturbed.result.state_hash);
      ASSERT_TRUE(outcome.result.best);
      EXPECT_EQ(outcome.result.best->step, undisturbed.result.best->step);
      EXPECT_EQ(outcome.result.best->validation_loss, undisturbed.result.best->validation_loss);
    }
  }
}

TEST_F(TrainLoopTest, ARunThatHasStoppedEarlyGoesOnOnlyWithMorePatience) {
  const TrainOutcome first = train(kOverfits);
  ASSERT_TRUE(first.result.stopped_early);
  Life again = kOverfits;
  again.generation = 2;
  again.parent = 1;
  const TrainOutcome second = train(again);
  EXPECT_TRUE(second.complete);
  EXPECT_EQ(second.result.step, first.result.step);
  EXPECT_EQ(second.result.state_hash, first.result.state_hash);
  again.generation = 3;
  again.parent = 2;
  again.patience = kOverfits.patience + 1;
  EXPECT_GT(train(again).result.step, first.result.step);
}

TEST_F(TrainLoopTest, BeforeTheFirstStepNothingIsTrained) {
  const TrainOutcome outcome = train({.stop_asked = [] { return true; }});
  EXPECT_FALSE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed) << "nothing is lost";
  EXPECT_EQ(outcome.result.step, 0);
  expect_same_end(1);
}

TEST_F(TrainLoopTest, TheStepUnderWayIsTheLastOne) {
  AskAfter stop(trace::Activity::kForward, 3);
  const TrainOutcome outcome = train({.stop_asked = stop.stop_asked(), .spans = &stop});
  EXPECT_FALSE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed);
  EXPECT_EQ(outcome.result.step, 4);
  expect_same_end(1);
}

TEST_F(TrainLoopTest, AnEvaluationIsCutShort) {
  AskAfter stop(trace::Activity::kForward, kEvaluateEvery);
  // 50 micro-batches, of which a step has four.
  const TrainOutcome outcome =
      train({.stop_asked = stop.stop_asked(), .spans = &stop, .evaluated_windows = 150});
  EXPECT_FALSE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed);
  EXPECT_EQ(outcome.result.step, kEvaluateEvery);
  EXPECT_LT(stop.batches_since(), 12) << "forward alone, in the time of a step";
  EXPECT_TRUE(std::isnan(outcome.result.validation_loss)) << outcome.result.validation_loss;
  expect_same_end(1);
}

TEST_F(TrainLoopTest, TheLastEvaluationIsLeftToTheRunThatGoesOn) {
  AskAfter stop(trace::Activity::kForward, kSteps - 1);
  const TrainOutcome outcome = train({.stop_asked = stop.stop_asked(), .spans = &stop});
  EXPECT_FALSE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed);
  EXPECT_EQ(outcome.result.step, kSteps);
  expect_same_end(1);
}

TEST_F(TrainLoopTest, WithoutCheckpointsTheLastEvaluationIsMade) {
  AskAfter stop(trace::Activity::kForward, kSteps - 1);
  const TrainOutcome outcome = train({.root = "", .stop_asked = stop.stop_asked(), .spans = &stop});
  EXPECT_TRUE(outcome.complete);
  EXPECT_GT(outcome.result.validation_loss, 0);
}

TEST_F(TrainLoopTest, WithoutValidationDataTheModelOfTheLastStepIsLookedAtAllTheSame) {
  const auto world = comm::make_communicator(comm::TransportKind::kLocal,
                                             {.endpoints = {{.rank = 0}}, .job_uid = "test"}, {});
  ASSERT_TRUE(world) << world.error().message;
  Life life{.validates = false};
  EXPECT_TRUE(train(life, **world)->complete);
  life.root = "diverged";
  life.steps = 1;
  life.learning_rate = 1e30;
  life.export_to = folder_.path() / "export";
  const auto outcome = train(life, **world);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(outcome.error().message,
              HasSubstr("the loss on engine.data.tokens after the last step, 1, is not finite: the "
                        "model has diverged"));
  EXPECT_FALSE(std::filesystem::exists(life.export_to));
}

TEST_F(TrainLoopTest, TheLastCheckpointIsWrittenAgainUntilItIsThere) {
  const auto in_the_way = folder_.path() / "checkpoints/g1-step-0000000006";
  std::vector<std::string> warnings;
  Life life;
  // A file stands where the checkpoint is to be, until the second failure.
  life.warn = [&](const std::string& warning) {
    warnings.push_back(warning);
    if (warnings.size() == 2) std::filesystem::remove(in_the_way);
  };
  life.stop_asked = [&, placed = false]() mutable {
    if (!std::exchange(placed, true)) std::ofstream(in_the_way) << "in the way";
    return false;
  };
  const TrainOutcome outcome = train(life);
  EXPECT_TRUE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], HasSubstr("checkpoint of step 6 was not written; the trained state is "
                                     "kept and written again until that succeeds"));
  EXPECT_EQ(outcome.result.state_hash, train({.root = "undisturbed"}).result.state_hash);
  EXPECT_TRUE(train({.generation = 2, .parent = 1}).complete) << "it can be read";
}

TEST_F(TrainLoopTest, ARunThatCannotWriteItsLastCheckpointCanBeStopped) {
  const auto in_the_way = folder_.path() / "checkpoints/g1-step-0000000006";
  bool warned = false;
  Life life;
  life.warn = [&](const std::string& /*warning*/) { warned = true; };
  life.stop_asked = [&, placed = false]() mutable {
    if (!std::exchange(placed, true)) std::ofstream(in_the_way) << "in the way";
    return warned;
  };
  const auto world =
      comm::make_communicator(comm::TransportKind::kLocal,
                              {.endpoints = {{.rank = 0}}, .generation = 1, .job_uid = "test"}, {});
  ASSERT_TRUE(world) << world.error().message;
  const auto outcome = train(life, **world);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
  EXPECT_THAT(outcome.error().message, HasSubstr("stopped before the last checkpoint, step 6"));
}

TEST_F(TrainLoopTest, ACheckpointIsReadNoFurther) {
  AskAfter stop(trace::Activity::kForward, 3);
  ASSERT_TRUE(train({.stop_asked = stop.stop_asked(), .spans = &stop}).checkpointed);
  // Who reads it finds that it is damaged.
  const auto shard = folder_.path() / "checkpoints/g1-step-0000000004/shard-0-of-1.safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x7f');
    ASSERT_TRUE(file.good());
  }
  const TrainOutcome outcome =
      train({.generation = 2, .parent = 1, .stop_asked = [] { return true; }});
  EXPECT_FALSE(outcome.complete);
  EXPECT_TRUE(outcome.checkpointed);
  EXPECT_EQ(outcome.result.step, 4);
  // The next one begins where this one would have begun, and reads.
  const auto world =
      comm::make_communicator(comm::TransportKind::kLocal,
                              {.endpoints = {{.rank = 0}}, .generation = 3, .job_uid = "test"}, {});
  const auto damaged = train({.generation = 3, .parent = 2}, **world);
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::kInvalidData);
  EXPECT_THAT(damaged.error().message, HasSubstr("none of 2 checkpoints is good"));
}

TEST_F(TrainLoopTest, ARankWhoseDiskHangsEndsWithTheFileAndTheCode) {
  if (!testing_support::HangingFiles::possible()) {
    GTEST_SKIP() << "userfaultfd is not available here";
  }
  int message[2];
  ASSERT_EQ(::pipe(message), 0);
  const auto start = std::chrono::steady_clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    // As the worker's main(): an error is told, and its code is what the process ends with. At exit
    // LeakSanitizer would wait for the thread that the kernel holds.
    const auto end = [](int code) {
      testing_support::kSanitized ? ::_exit(code) : std::exit(code);
    };
    std::optional<testing_support::HangingFiles> hanging;
    const auto world = comm::make_communicator(
        comm::TransportKind::kLocal,
        {.endpoints = {{.rank = 0}}, .generation = 1, .job_uid = "test"}, {});
    const auto hang = [&] {  // asked before the first batch, when the files are open
      if (!hanging) hanging.emplace((folder_.path() / "train").string());
      return false;
    };
    const auto outcome =
        train({.stop_asked = hang, .data_timeout = std::chrono::seconds(1)}, **world);
    if (outcome) end(0);
    const std::string& text = outcome.error().message;
    (void)!::write(message[1], text.data(), text.size());
    end(contract::exit_code_of(outcome.error().code));
  }
  ::close(message[1]);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(WIFEXITED(status)) << "it had to be killed";
  EXPECT_EQ(WEXITSTATUS(status), 75);
  std::array<char, 4096> text{};
  EXPECT_GT(::read(message[0], text.data(), text.size() - 1), 0);
  ::close(message[0]);
  EXPECT_THAT(text.data(), HasSubstr("waited 1 s for tokens"));
  EXPECT_THAT(text.data(), HasSubstr((folder_.path() / "train").string() + "/00000.tokens"));
}

TEST_F(TrainLoopTest, OneRankThatIsAskedStopsAll) {
  const auto outcomes =
      train_two([](int rank) { return Life{.stop_asked = [rank] { return rank == 1; }}; });
  for (const TrainOutcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.complete);
    EXPECT_TRUE(outcome.checkpointed);
    EXPECT_EQ(outcome.result.step, 0);
    EXPECT_EQ(outcome.result.state_hash, "") << "nobody gathers for it";
  }
}

TEST_F(TrainLoopTest, AFailureIsToldBeforeThePeersHearOfIt) {
  std::atomic<bool> told{false};
  std::atomic<bool> told_first{false};
  comm::testing::run_world(comm::TransportKind::kLocal, 2, [&](comm::Communicator& world) {
    Life life{.has_data = world.rank() == 0};
    life.failing = [&](const Error& error) {
      if (world.rank() == 1) {
        EXPECT_EQ(error.code, ErrorCode::kNotFound) << error.message;
        std::this_thread::sleep_for(
            std::chrono::milliseconds(100));  // for a peer that knows already
        told = true;
      } else {
        EXPECT_EQ(error.code, ErrorCode::kAborted);
        told_first = told.load();
      }
    };
    EXPECT_FALSE(train(life, world));
  });
  EXPECT_TRUE(told_first);
}

TEST_F(TrainLoopTest, AFetchThatIsBrokenOffEndsTheGenerationWithoutAskingTheOthers) {
  const std::array<UniqueFd, 2> memory = {UniqueFd(::memfd_create("0", MFD_CLOEXEC)),
                                          UniqueFd(::memfd_create("1", MFD_CLOEXEC))};
  const Error killed{ErrorCode::kAborted, "killed in step 3"};
  const Error stopped{ErrorCode::kAborted, "asked to stop"};
  for (const int64_t generation : {1, 2}) {
    comm::testing::run_world(comm::TransportKind::kTcp, 2, [&](comm::Communicator& world) {
      const int rank = world.rank();
      Life life{.generation = generation, .memory_fd = memory[static_cast<size_t>(rank)].get()};
      if (generation == 1) {
        life.stop_asked = [&world, &killed, turns = 0]() mutable {
          if (++turns == 4) world.abort(killed);
          return false;
        };
      } else {
        life.parent = 1;
        life.meets_across = stopped;
      }
      const auto outcome = train(life, world);
      ASSERT_FALSE(outcome);
      if (generation == 1) return;
      EXPECT_EQ(outcome.error().code, ErrorCode::kAborted);
      if (rank == 0) {
        EXPECT_THAT(outcome.error().message, HasSubstr("asked to stop"));
      }
      // Rank 0, which gathers what all ranks say, would name the rank.
      EXPECT_THAT(outcome.error().message, Not(HasSubstr("rank 0: asked to stop")));
    });
  }
}

TEST_F(TrainLoopTest, RanksThatOwnPartsExportWhatALoneRankExports) {
  EXPECT_TRUE(train({.root = "lone", .export_to = folder_.path() / "by-one"}).complete);
  const auto outcomes =
      train_two([&](int) { return Life{.export_to = folder_.path() / "by-two"}; });
  for (const TrainOutcome& outcome : outcomes)
    EXPECT_TRUE(outcome.complete);
  const std::string by_one = exported("by-one");
  EXPECT_GT(by_one.size(), 1000U);
  EXPECT_TRUE(by_one == exported("by-two"));
}

}  // namespace
}  // namespace trainyard::engine
