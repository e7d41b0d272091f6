#include "control/coordinator/message_memory.h"

#include <limits>
#include <string>

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <gtest/gtest.h>

#include "common/contract/progress_figures.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/control_transport.h"

namespace trainyard::control {
namespace {

using coordination::FromAgent;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

int64_t memory_of(const std::string& encoded, int64_t limit = kUnlimited) {
  google::protobuf::io::ArrayInputStream input(encoded.data(), static_cast<int>(encoded.size()));
  return parsed_memory(input, *FromAgent::descriptor(), limit);
}

int64_t taken_by(const FromAgent& message) { return static_cast<int64_t>(message.SpaceUsedLong()); }

/// Of an agent with the most ranks, all that they have counted in it.
FromAgent largest_heartbeat() {
  FromAgent message;
  for (int rank = 0; rank < 1024; ++rank) {
    auto& progress = *message.mutable_heartbeat()->add_ranks();
    progress.set_rank(rank);
    progress.set_instruction("ALL_GATHER u100");
    for (size_t slot = contract::kFirstFigures; slot < contract::kFigures; ++slot)
      progress.add_further_figures(0.1);
    progress.mutable_checkpoints()->set_failure(std::string(200, 'f'));
    auto& counters = *progress.mutable_counters();
    counters.mutable_step();
    for (int i = 0; i < 12; ++i) {
      counters.add_collectives();
      counters.add_memory_bytes(1);
      for (int bucket = 0; bucket < 24; ++bucket) {
        if (bucket == 0) counters.add_stages();
        counters.mutable_stages(i)->add_buckets(bucket);
      }
    }
  }
  return message;
}

TEST(MessageMemoryTest, IsNoLessThanWhatAMessageTakes) {
  FromAgent words;
  words.mutable_fence()->set_pod_uid(std::string(3000, 'u'));
  for (int i = 0; i < 1000; ++i)
    words.mutable_rank_exited()->add_last_lines(std::string(static_cast<size_t>(i), 'w'));
  for (const FromAgent& message : {FromAgent(), words, largest_heartbeat()}) {
    FromAgent parsed;
    ASSERT_TRUE(parsed.ParseFromString(message.SerializeAsString()));
    EXPECT_GE(memory_of(message.SerializeAsString()), taken_by(parsed));
  }
}

TEST(MessageMemoryTest, EmptyPartsCountAsWhatTheyAreOnceParsed) {
  FromAgent message;
  for (int i = 0; i < 1000; ++i) {
    message.mutable_heartbeat()->add_ranks();
    message.mutable_heartbeat()->mutable_ranks(0)->add_further_figures(0);
  }
  const std::string encoded = message.SerializeAsString();
  EXPECT_GE(memory_of(encoded), taken_by(message));
  EXPECT_GE(memory_of(encoded), 20 * std::ssize(encoded));
}

TEST(MessageMemoryTest, FieldsThatNobodyKnowsCount) {
  FromAgent message;
  for (int i = 0; i < 1000; ++i)
    message.GetReflection()->MutableUnknownFields(&message)->AddVarint(1000 + i, 1);
  EXPECT_GE(memory_of(message.SerializeAsString()), taken_by(message));
}

TEST(MessageMemoryTest, TheLargestHeartbeatFits) {
  EXPECT_LE(memory_of(largest_heartbeat().SerializeAsString()), kMaxMessageMemoryBytes * 2 / 3);
}

TEST(MessageMemoryTest, IsReadNoFurtherThanToTheLimit) {
  const std::string encoded = largest_heartbeat().SerializeAsString();
  EXPECT_GT(memory_of(encoded, 10'000), 10'000);
  EXPECT_LT(memory_of(encoded, 10'000), 20'000);
}

TEST(MessageMemoryTest, BytesThatAreNoMessageEndTheEstimate) {
  for (const std::string& bytes :
       {std::string("\x0a\xff\xff\xff\xff\x0f"), std::string("\x22\x05\x0a"),
        std::string(100, '\xff'), std::string("\x0b\x0b\x0b")})
    EXPECT_LT(memory_of(bytes), 4096) << "of " << bytes.size() << " bytes";
}

}  // namespace
}  // namespace trainyard::control
