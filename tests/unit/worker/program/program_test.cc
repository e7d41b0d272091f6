#include <gtest/gtest.h>

#include "worker/program/checker.h"
#include "worker/program/data_parallel.h"

namespace trainyard::engine {
namespace {

constexpr int kChunks = 4;
const std::vector<int> kReady = {3, 1, 0};

StepProgram program_of(int micro_batches) {
  return data_parallel_program(
      {.micro_batches = micro_batches, .chunks = kChunks, .bucket_ready_chunk = kReady});
}

size_t index_of(const StepProgram& program, InstructionKind kind, int chunk) {
  for (size_t i = 0; i < program.size(); ++i) {
    if (program[i].kind == kind && program[i].chunk == chunk) return i;
  }
  return program.size();
}

/// Runs the checker on ranks' programs after one change to rank 1's.
template <class Change>
Status check_after(Change change) {
  std::vector<StepProgram> programs = {program_of(2), program_of(2)};
  change(programs[1]);
  return check_programs(programs, kChunks, kReady);
}

TEST(DataParallelProgramTest, RanksWithUnevenMicroBatchesAgree) {
  for (int a = 0; a <= 3; ++a) {
    const Status status = check_programs({program_of(a), program_of(3)}, kChunks, kReady);
    EXPECT_TRUE(status) << status.error().message;
  }
}

TEST(DataParallelProgramTest, ABucketIsReducedBeforeEarlierChunksGoBackward) {
  const StepProgram program = program_of(1);
  EXPECT_LT(index_of(program, InstructionKind::kReduce, 0),
            index_of(program, InstructionKind::kBackwardInput, 2))
      << "the last layers' gradients travel while the rest of backward runs";
}

TEST(ProgramCheckerTest, FindsACollectiveOutOfOrder) {
  const Status status = check_after([](StepProgram& p) {
    std::swap(p[index_of(p, InstructionKind::kGather, 0)],
              p[index_of(p, InstructionKind::kGather, 1)]);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("deadlock"), std::string::npos);
}

TEST(ProgramCheckerTest, FindsAMissingCollective) {
  EXPECT_FALSE(check_after([](StepProgram& p) {
    p.erase(p.begin() + static_cast<int64_t>(index_of(p, InstructionKind::kReduceControl, -1)));
  }));
}

TEST(ProgramCheckerTest, FindsABucketReducedTooEarly) {
  const Status status = check_after([](StepProgram& p) {
    const size_t at = index_of(p, InstructionKind::kReduce, 2);
    const Instruction moved = p[at];
    p.erase(p.begin() + static_cast<int64_t>(at));
    p.insert(p.begin() + static_cast<int64_t>(at) - 1, moved);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("still adds to the bucket"), std::string::npos);
}

TEST(ProgramCheckerTest, FindsABackwardBeforeItsForward) {
  EXPECT_FALSE(check_after([](StepProgram& p) {
    const size_t at = index_of(p, InstructionKind::kBackwardInput, 3);
    std::swap(p[at], p[at - 1]);
  }));
}

TEST(ProgramCheckerTest, FindsAWeightGradientAddedTwice) {
  const Status status = check_after([](StepProgram& p) {
    const size_t at = index_of(p, InstructionKind::kBackwardWeight, 3);
    p.insert(p.begin() + static_cast<int64_t>(at), p[at]);
  });
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("runs twice"), std::string::npos);
}

TEST(ProgramCheckerTest, FindsAnOptBeforeTheLastGather) {
  EXPECT_FALSE(check_after([](StepProgram& p) { std::swap(p[p.size() - 1], p[p.size() - 2]); }));
}

TEST(InstructionTest, SpellsItselfForPeople) {
  EXPECT_EQ(
      to_string(Instruction{.kind = InstructionKind::kBackwardInput, .micro_batch = 3, .chunk = 2}),
      "B m3 c2");
}

}  // namespace
}  // namespace trainyard::engine
