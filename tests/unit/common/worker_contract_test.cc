#include "common/worker_contract.h"

#include <cmath>
#include <cstddef>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::contract {
namespace {

using ::testing::HasSubstr;

Start two_rank_start() {
  Start start;
  start.generation = 3;
  start.ranks = {{0, 0, "boot/1", "127.0.0.1:4711"}, {1, 2, "boot/2", "[::1]:80"}};
  start.resume = {3, 2, 400};
  start.key = {std::byte{0x00}, std::byte{0x9f}, std::byte{0xff}};
  return start;
}

// Programs in other languages read these numbers in docs/reference/worker-contract.md.
static_assert(offsetof(ProgressPage, sequence) == 8);
static_assert(offsetof(ProgressPage, phase) == 16);
static_assert(offsetof(ProgressPage, step) == 24);
static_assert(offsetof(ProgressPage, figures) == 56);
static_assert(offsetof(ProgressPage, checkpoint_step) == 104);
static_assert(offsetof(ProgressPage, restored_step) == 120);
static_assert(offsetof(ProgressPage, checkpoints) == 128);
static_assert(offsetof(ProgressPage, further_figures) == 808);
static_assert(offsetof(CheckpointPage, committed_unix_s) == 48);
static_assert(offsetof(CheckpointPage, failure) == 96);
static_assert(sizeof(CheckpointPage) == 608);

TEST(CheckpointFiguresTest, ComeBackAsTheyWent) {
  CheckpointPage page{};
  const CheckpointFigures written{.commits = 3,
                                  .failures = 2,
                                  .failed_step = 40,
                                  .bytes = 5,
                                  .bytes_total = 6,
                                  .committed_unix_s = 7.5,
                                  .commit_s = 8.5,
                                  .write_s = 9.5,
                                  .write_cpu_s = 10.5,
                                  .stall_s = 11.5,
                                  .stall_total_s = 12.5,
                                  .failure = "rank 1: write: No space left on device"};
  store(written, page);
  CheckpointFigures found;
  ASSERT_TRUE(load(page, found));
  EXPECT_EQ(found, written);
  store({}, page);
  ASSERT_TRUE(load(page, found));
  EXPECT_EQ(found, CheckpointFigures{});
}

TEST(CheckpointFiguresTest, LongFailuresAreCutBetweenCharacters) {
  CheckpointPage page{};
  constexpr size_t kMax = CheckpointPage::kMaxFailureBytes;
  store({.failure = std::string(kMax - 1, 'x') + "\u00e4 and more"}, page);
  CheckpointFigures found;
  ASSERT_TRUE(load(page, found));
  EXPECT_EQ(found.failure, std::string(kMax - 1, 'x'));
}

TEST(CheckpointFiguresTest, AWriterThatStoppedInTheMiddleLeavesTheOldReading) {
  CheckpointPage page{};
  store({.commits = 1}, page);
  CheckpointFigures found;
  ASSERT_TRUE(load(page, found));
  page.sequence.fetch_add(1);
  page.commits = 2;
  EXPECT_FALSE(load(page, found));
  EXPECT_EQ(found.commits, 1);
}

static_assert(offsetof(ProgressPage, position) == 768);
static_assert(offsetof(RankPosition, kind) == 8);
static_assert(offsetof(RankPosition, micro_batch) == 24);
static_assert(offsetof(RankPosition, place) == 28);
static_assert(offsetof(RankPosition, work_seconds) == 32);

TEST(RankPositionTest, TellsTheInstructionInWords) {
  RankPosition position{};
  EXPECT_EQ(instruction_text(position), "");
  store({"B", 3, 0}, position);
  EXPECT_EQ(instruction_text(position), "B m3 l0");
  store({"REDUCE_CONTROL"}, position);
  EXPECT_EQ(instruction_text(position), "REDUCE_CONTROL");
  store({.kind = "RECOMPUTE", .micro_batch = 0, .place = 2}, position);
  EXPECT_EQ(instruction_text(position), "RECOMPUTE m0 l2");
  store({"A_KIND_THAT_IS_TOO_LONG", -1, 7}, position);
  EXPECT_EQ(instruction_text(position), "A_KIND_THAT_IS_T u7");
}

TEST(RankPositionTest, BytesOfAForeignProgramComeOutPrintable) {
  RankPosition position{};
  store({"a\x1b[31m\xff"}, position);
  EXPECT_EQ(instruction_text(position), "a?[31m?");
}

TEST(WorkerContractTest, EveryMessageIsOneLine) {
  EXPECT_EQ(encode(Stop{}), "{\"type\":\"stop\"}\n");
  EXPECT_EQ(encode(AskedToEnd{}), "{\"type\":\"askedToEnd\"}\n");
  const std::string line = encode(PeerLost{3, "first\nsecond \"quoted\" \x1b[31m"});
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_EQ(line.find('\x1b'), std::string::npos);
}

TEST(WorkerContractTest, ListeningComesBackAsItWent) {
  const auto decoded = decode_listening(encode(Listening{"127.0.0.1:4711"}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->address, "127.0.0.1:4711");
}

TEST(WorkerContractTest, StartComesBackAsItWent) {
  const auto decoded = decode_start(encode(two_rank_start()));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->generation, 3);
  ASSERT_EQ(decoded->ranks.size(), 2u);
  EXPECT_EQ(decoded->ranks[1].rank, 1);
  EXPECT_EQ(decoded->ranks[1].node_index, 2);
  EXPECT_EQ(decoded->ranks[1].host_id, "boot/2");
  EXPECT_EQ(decoded->ranks[1].address, "[::1]:80");
  EXPECT_EQ(decoded->resume.generation, 3);
  EXPECT_EQ(decoded->resume.parent_generation, 2);
  EXPECT_EQ(decoded->resume.committed_step, 400);
  EXPECT_EQ(decoded->key, two_rank_start().key);
}

TEST(WorkerContractTest, StartOfAFreshRunHasNoParent) {
  Start start = two_rank_start();
  start.resume.parent_generation.reset();
  start.resume.committed_step.reset();
  start.key.clear();
  const auto decoded = decode_start(encode(start));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_TRUE(decoded->key.empty());
  EXPECT_FALSE(decoded->resume.parent_generation.has_value());
  EXPECT_FALSE(decoded->resume.committed_step.has_value());
}

TEST(WorkerContractTest, PeerLostKeepsItsTextExceptBytesThatAreNoText) {
  const auto decoded = decode_peer_lost(encode(PeerLost{-1, "rank \xff is gone\n\t\xc3\xa9"}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->rank, -1);
  EXPECT_EQ(decoded->message, "rank \xef\xbf\xbd is gone\n\t\xc3\xa9");
}

TEST(WorkerContractTest, FailingComesBackAsItWent) {
  const auto decoded = decode_failing(encode(Failing{65, "tokens/train: not there"}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->exit_code, 65);
  EXPECT_EQ(decoded->message, "tokens/train: not there");
}

TEST(WorkerContractTest, ResultKeepsEveryBitOfItsNumbers) {
  const RunResult result{"0123456789abcdef", 1234567890123, 0.1 + 0.2, 1e-300};
  const auto decoded = decode_run_result(encode(result));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->state_hash, result.state_hash);
  EXPECT_EQ(decoded->step, result.step);
  EXPECT_EQ(decoded->final_loss, result.final_loss);
  EXPECT_EQ(decoded->validation_loss, result.validation_loss);
}

TEST(WorkerContractTest, ResultKeepsThePeakOfMemoryOrItsAbsence) {
  RunResult result{"00", 1, 2.5, 2.5};
  auto decoded = decode_run_result(encode(result));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->peak_memory, std::nullopt);
  result.peak_memory = {.rank = 3, .planned_bytes = int64_t{1} << 40, .measured_bytes = 7};
  decoded = decode_run_result(encode(result));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->peak_memory, result.peak_memory);
  const auto bad = decode_run_result(
      R"({"type":"result","stateHash":"","step":1,"finalLoss":1,"validationLoss":1,)"
      R"("peakMemory":{"rank":0,"plannedBytes":-1,"measuredBytes":7}})");
  ASSERT_FALSE(bad);
  EXPECT_NE(bad.error().message.find("\"plannedBytes\": found -1"), std::string::npos);
}

TEST(WorkerContractTest, ResultKeepsTheBestModel) {
  RunResult result{"00", 30, 2.5, 2.5};
  result.best = BestModel{.step = 10, .validation_loss = 2.25, .checkpoint = "g1-step-0000000010"};
  result.stopped_early = true;
  const auto decoded = decode_run_result(encode(result));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->best, result.best);
  EXPECT_TRUE(decoded->stopped_early);
}

TEST(WorkerContractTest, ResultKeepsSkippedStepsAndWarningsOrTheirAbsence) {
  RunResult result{"00", 1, 2.5, 2.5};
  result.skipped_steps = 7;
  result.warnings = {"clean-up: one", "latest: \"two\""};
  auto decoded = decode_run_result(encode(result));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->skipped_steps, 7);
  EXPECT_EQ(decoded->warnings, result.warnings);
  decoded = decode_run_result(
      R"({"type":"result","stateHash":"","step":1,"finalLoss":1,"validationLoss":1})");
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->skipped_steps, 0) << "of an earlier version";
  EXPECT_FALSE(decoded->best);
  EXPECT_FALSE(decoded->stopped_early);
  EXPECT_TRUE(decoded->warnings.empty());
}

TEST(WorkerContractTest, ResultWithoutValidationComesBackAsNan) {
  const auto decoded =
      decode_run_result(encode(RunResult{"00", 1, 2.5, std::numeric_limits<double>::quiet_NaN()}));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_TRUE(std::isnan(decoded->validation_loss));
}

TEST(WorkerContractTest, MessageTypeReadsTheTypeOfAMessageItDoesNotKnow) {
  const auto type = message_type(R"({"type":"future","more":[1,2]})");
  ASSERT_TRUE(type) << type.error().message;
  EXPECT_EQ(*type, "future");
}

TEST(WorkerContractTest, UnknownMembersAreIgnored) {
  EXPECT_TRUE(decode_listening(R"({"type":"listening","address":"a:1","future":{"x":1}})"));
}

struct Hostile {
  const char* line;
  const char* message;
};

void expect_refused(const Hostile& hostile, const Result<std::string>& outcome) {
  ASSERT_FALSE(outcome) << hostile.line;
  EXPECT_EQ(outcome.error().code, ErrorCode::kInvalidData) << hostile.line;
  EXPECT_THAT(outcome.error().message, HasSubstr(hostile.message)) << hostile.line;
}

/// The outcome of a decoder with its value dropped.
template <class T>
Result<std::string> outcome_of(const Result<T>& result) {
  if (!result) return result.error();
  return std::string("decoded");
}

TEST(WorkerContractTest, LinesThatAreNoMessageAreRefused) {
  for (const Hostile& hostile : {Hostile{"", "not a JSON object"},
                                 {"null", "not a JSON object"},
                                 {"[]", "not a JSON object"},
                                 {"{", "not a JSON object"},
                                 {"{}{}", "not a JSON object"},
                                 {"{}", "\"type\": missing"},
                                 {R"({"type":7})", "\"type\": found number"},
                                 {"{\"type\":\"\xff\"}", "not a JSON object"}}) {
    expect_refused(hostile, message_type(hostile.line));
  }
}

TEST(WorkerContractTest, DeepNestingIsNoProblem) {
  const std::string deep =
      R"({"type":"x","a":)" + std::string(400000, '[') + std::string(400000, ']') + "}";
  EXPECT_TRUE(message_type(deep));
}

TEST(WorkerContractTest, OverlongMessagesAreRefusedUnparsed) {
  std::string line = R"({"type":"x","a":")";
  line += std::string(static_cast<size_t>(kMaxMessageBytes), 'a') + "\"}";
  expect_refused({"(long)", "wanted at most 1048576"}, message_type(line));
}

TEST(WorkerContractTest, HostileStartsAreRefusedByName) {
  const std::string good_rank = R"({"rank":0,"nodeIndex":0,"hostId":"h","address":"a:1"})";
  const auto start = [](const std::string& ranks, const std::string& resume) {
    return R"({"type":"start","generation":1,"ranks":)" + ranks + R"(,"resume":)" + resume + "}";
  };
  const std::string resume = R"({"generation":1})";
  const std::pair<std::string, const char*> cases[] = {
      {R"({"type":"stop"})", "found \"stop\""},
      {R"({"type":"start","generation":1})", "\"ranks\": missing"},
      {R"({"type":"start","generation":-1})", "found -1"},
      {R"({"type":"start","generation":18446744073709551615})", "found 18446744073709551615"},
      {R"({"type":"start","generation":1.5})", "\"generation\": found number"},
      {start("[]", resume), "at least one rank"},
      {start("[1]", resume), "ranks[0]"},
      {start("[{}]", resume), "ranks[0]: message member \"rank\": missing"},
      {start(R"([{"rank":1,"nodeIndex":0,"hostId":"h","address":"a"}])", resume), "ascending"},
      {start("[" + good_rank + "," + good_rank + "]", resume), "ranks[1]: found rank 0"},
      {start(R"([{"rank":0,"nodeIndex":99999999999,"hostId":"h","address":"a"}])", resume),
       "nodeIndex"},
      {start("[" + good_rank + "]", "7"), "\"resume\": found number"},
      {start("[" + good_rank + "]", resume + R"(,"key":"")"), "\"key\": found 0 characters"},
      {start("[" + good_rank + "]", resume + R"(,"key":"abc")"), "\"key\": found 3 characters"},
      {start("[" + good_rank + "]", resume + R"(,"key":"0g")"), "\"key\": found 2 characters"},
      {start("[" + good_rank + "]", R"({"generation":2})"), "found generation 2"},
      {start("[" + good_rank + "]", R"({"generation":1,"parentGeneration":"2"})"),
       "parentGeneration"},
      {start("[" + good_rank + "]", R"({"generation":1,"committedStep":-1})"), "committedStep"},
  };
  for (const auto& [line, message] : cases) {
    expect_refused({line.c_str(), message}, outcome_of(decode_start(line)));
  }
}

TEST(WorkerContractTest, HostileMessagesOfRanksAreRefusedByName) {
  expect_refused({"listening", "\"address\""},
                 outcome_of(decode_listening(R"({"type":"listening","address":null})")));
  expect_refused({"peerLost", "\"rank\""},
                 outcome_of(decode_peer_lost(R"({"type":"peerLost","rank":-2,"message":""})")));
  for (const char* code : {"0", "256", "-1", "6.5", "null"}) {
    expect_refused({"failing", "\"exitCode\""},
                   outcome_of(decode_failing(std::string(R"({"type":"failing","exitCode":)") +
                                             code + R"(,"message":""})")));
  }
  expect_refused({"failing", "\"message\": missing"},
                 outcome_of(decode_failing(R"({"type":"failing","exitCode":65})")));
  expect_refused({"result", "\"finalLoss\": found string"},
                 outcome_of(decode_run_result(
                     R"({"type":"result","stateHash":"0","step":1,"finalLoss":"low"})")));
  expect_refused(
      {"result", "\"validationLoss\": missing"},
      outcome_of(decode_run_result(R"({"type":"result","stateHash":"0","step":1,"finalLoss":1})")));
}

TEST(WorkerContractTest, ExitCodesFollowTheKindOfError) {
  EXPECT_EQ(exit_code_of(ErrorCode::kInvalidConfig), 64);
  EXPECT_EQ(exit_code_of(ErrorCode::kInvalidData), 65);
  EXPECT_EQ(exit_code_of(ErrorCode::kNotFound), 65);
  EXPECT_EQ(exit_code_of(ErrorCode::kPeerLost), 69);
  EXPECT_EQ(exit_code_of(ErrorCode::kInternal), 70);
  for (const ErrorCode retried : {ErrorCode::kUnavailable, ErrorCode::kDeadline, ErrorCode::kIo,
                                  ErrorCode::kAborted, ErrorCode::kConflict}) {
    EXPECT_EQ(exit_code_of(retried), 75);
  }
}

}  // namespace
}  // namespace trainyard::contract
