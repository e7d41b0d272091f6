// Agents of an earlier build: what they said to their own coordinator is said to the present one,
// byte for byte. tests/fixtures/control/messages-02eeba82.txt says how the bytes were recorded.
#include <array>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <gtest/gtest.h>

#include "common/proto/coordination.pb.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/memory_transport.h"
#include "tests/support/manual_clock.h"
#include "tests/support/paths.h"

namespace trainyard::control {
namespace {

namespace protobuf = google::protobuf;
using coordination::FromAgent;
using coordination::ToAgent;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::string kept_bytes(const std::string& name) {
  std::ifstream file(testing_support::source_path("tests/fixtures/control/" + name),
                     std::ios::binary);
  std::stringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

/// One stream between an agent and the earlier coordinator.
struct Recording {
  std::vector<FromAgent> said;
  std::vector<ToAgent> told;
};

std::string bytes_of(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// By stream.
std::map<std::string, Recording> recordings() {
  std::map<std::string, Recording> found;
  std::istringstream lines(kept_bytes("messages-02eeba82.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string stream;
    std::string speaker;
    std::string hex;
    words >> stream >> speaker >> hex;
    Recording& recording = found[stream];
    const bool is_read = speaker == "said"
                             ? recording.said.emplace_back().ParseFromString(bytes_of(hex))
                             : recording.told.emplace_back().ParseFromString(bytes_of(hex));
    EXPECT_TRUE(is_read && words) << line;
  }
  return found;
}

/// The earlier build's messages, read as that build reads them.
class EarlierProtocol {
 public:
  EarlierProtocol() {
    protobuf::FileDescriptorSet files;
    EXPECT_TRUE(files.ParseFromString(kept_bytes("coordination-02eeba82.binpb")));
    file_ = pool_.BuildFile(files.file(0));
  }

  const protobuf::FileDescriptor& file() const { return *file_; }

  /// What of a message the earlier agent understands.
  ToAgent understood(const ToAgent& message) {
    const std::unique_ptr<protobuf::Message> seen(
        factory_.GetPrototype(file_->FindMessageTypeByName("ToAgent"))->New());
    EXPECT_TRUE(seen->ParseFromString(message.SerializeAsString()));
    seen->DiscardUnknownFields();
    ToAgent read;
    EXPECT_TRUE(read.ParseFromString(seen->SerializeAsString()));
    return read;
  }

 private:
  protobuf::DescriptorPool pool_;
  protobuf::DynamicMessageFactory factory_;
  const protobuf::FileDescriptor* file_ = nullptr;
};

/// Name, number, type and whether it is optional or repeated.
std::string definition_of(const protobuf::FieldDescriptor& field) {
  protobuf::FieldDescriptorProto definition;
  field.CopyTo(&definition);
  definition.clear_json_name();    // which only descriptors in files have
  definition.clear_oneof_index();  // which those of later fields move
  return definition.DebugString();
}

TEST(EarlierProtocolTest, FieldsWereAddedAndNeverRenumbered) {
  const EarlierProtocol earlier;
  std::vector<std::string> dropped;
  for (int i = 0; i < earlier.file().message_type_count(); ++i) {
    const protobuf::Descriptor& then = *earlier.file().message_type(i);
    const protobuf::Descriptor* now =
        protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(then.full_name());
    ASSERT_NE(now, nullptr) << then.full_name();
    for (int k = 0; k < then.field_count(); ++k) {
      const protobuf::FieldDescriptor& field = *then.field(k);
      const protobuf::FieldDescriptor* kept = now->FindFieldByNumber(field.number());
      if (kept == nullptr && now->IsReservedNumber(field.number())) {
        dropped.push_back(then.name() + "." + field.name());
        continue;
      }
      ASSERT_NE(kept, nullptr) << field.full_name();
      EXPECT_EQ(definition_of(*kept), definition_of(field));
    }
  }
  EXPECT_THAT(dropped, ElementsAre("Hello.devices"));
}

/// Two agents of the earlier build, which stay and have two ranks each, and the present
/// coordinator.
class EarlierAgentsTest : public ::testing::Test {
 protected:
  EarlierAgentsTest() {
    order_.generation = 1;
    order_.num_nodes = 2;
    order_.num_proc_per_node = 2;
    for (const char* stream : {"node-0", "node-1"}) {
      const FromAgent& first = recorded_.at(stream).said.at(0);
      order_.job_uid = first.hello().job_uid();
      order_.members.push_back(
          {first.hello().pod_name(), first.fence().pod_uid(), first.hello().node_index()});
    }
    coordinator_.publish(order_);
  }

  /// Both agents say all that they said of this kind on their streams "`streams`0" and
  /// "`streams`1".
  void say(const std::string& streams, FromAgent::FactCase kind) {
    for (size_t node = 0; node < channels_.size(); ++node) {
      if (kind == FromAgent::kHello) {
        channels_[node] = transport_.make_channel();
        channels_[node]->open();
      }
      for (const FromAgent& message : recorded_.at(streams + std::to_string(node)).said) {
        if (message.fact_case() != kind) continue;
        ASSERT_TRUE(channels_[node]->send(message));
      }
    }
    coordinator_.poll(Duration::zero());
  }

  /// What the agent of a node was told since the last call.
  std::vector<ToAgent> told(size_t node) {
    std::vector<ToAgent> messages;
    for (ChannelEvent& event : channels_.at(node)->take()) {
      if (event.message) messages.push_back(std::move(*event.message));
    }
    return messages;
  }

  /// The agents come back to a coordinator that knows nothing of their training.
  void come_back() {
    say("again-", FromAgent::kHello);
    say("again-", FromAgent::kRanksListening);
    say("again-", FromAgent::kHeartbeat);
  }

  StreamFacts facts() const { return coordinator_.facts(order_.job_uid); }

  const std::map<std::string, Recording> recorded_ = recordings();
  EarlierProtocol earlier_;
  testing_support::ManualClock clock_;
  std::unique_ptr<Logger> logger_ = Logger::to_nowhere();
  MemoryTransport transport_;
  MembershipOrder order_;
  Coordinator coordinator_{{.transport = &transport_,
                            .clock = &clock_,
                            .logger = logger_.get(),
                            .term = 0,
                            .on_change = nullptr,
                            .on_rank_exit = nullptr}};
  std::array<std::unique_ptr<ControlChannel>, 2> channels_;
};

TEST_F(EarlierAgentsTest, AreToldToStartAsTheirOwnCoordinatorToldThem) {
  say("node-", FromAgent::kHello);
  say("node-", FromAgent::kRanksListening);
  for (size_t node = 0; node < channels_.size(); ++node) {
    std::vector<ToAgent> expected = recorded_.at("node-" + std::to_string(node)).told;
    const std::vector<ToAgent> now = told(node);
    ASSERT_EQ(now.size(), expected.size());
    for (size_t i = 0; i < now.size(); ++i) {
      ToAgent understood = earlier_.understood(now[i]);
      if (understood.has_rank_table()) {
        EXPECT_EQ(understood.rank_table().key().size(), expected[i].rank_table().key().size());
        *expected[i].mutable_rank_table()->mutable_key() = understood.rank_table().key();
      }
      EXPECT_EQ(understood.DebugString(), expected[i].DebugString());
    }
    EXPECT_EQ(now.at(0).start_generation().node_index(), static_cast<int>(node))
        << "they go by their pods' environment, which says the same";
  }
}

TEST_F(EarlierAgentsTest, AreKnownToStayAndNotToSayThatTheyHaveJoined) {
  say("node-", FromAgent::kHello);
  ASSERT_THAT(facts().members, SizeIs(2));
  for (const MemberFact& member : facts().members) {
    EXPECT_TRUE(member.connected && member.stays);
    EXPECT_FALSE(member.says_joined);
    EXPECT_EQ(member.generation, 1);
  }
}

TEST_F(EarlierAgentsTest, SayHowTheirRanksTrain) {
  say("node-", FromAgent::kHello);
  say("node-", FromAgent::kRanksListening);
  say("node-", FromAgent::kHeartbeat);
  const std::vector<RankReading> readings = coordinator_.readings(order_.job_uid);
  ASSERT_THAT(readings, SizeIs(4));
  const RankReading& first = readings[0];
  EXPECT_EQ(first.phase, contract::Phase::kTraining);
  EXPECT_EQ(first.step, 516);
  EXPECT_EQ(first.total_steps, 3000);
  EXPECT_EQ(first.tokens_consumed, 132096);
  EXPECT_EQ(first.loss, 2.5928926314227283);
  EXPECT_EQ(first.validation_loss, 2.7388521349057555);
  EXPECT_EQ(first.gradient_norm, 0.5866282811450455);
  EXPECT_EQ(first.instruction, "F m0 l0");
  EXPECT_EQ(first.checkpoints.commits, 1);
  EXPECT_EQ(first.checkpoints.bytes, 12928);
  EXPECT_EQ(first.counters.tokens_trained, 1664) << "of the heartbeat before";
  EXPECT_EQ(readings[3].step, 27);
  ASSERT_TRUE(facts().checkpoint);
  EXPECT_EQ(facts().checkpoint->step, 500);
}

TEST_F(EarlierAgentsTest, GoOnWhenTheyComeBack) {
  come_back();
  EXPECT_TRUE(facts().rank_table_ready);
  EXPECT_THAT(coordinator_.readings(order_.job_uid), SizeIs(4));
  for (size_t node = 0; node < channels_.size(); ++node)
    EXPECT_THAT(told(node), IsEmpty()) << "nothing is started or told twice";
}

TEST_F(EarlierAgentsTest, AreReplacedRatherThanToldToJoin) {
  come_back();
  say("again-", FromAgent::kRankExited);
  say("again-", FromAgent::kPeerLost);
  const MemberFact failed = facts().members.at(0).failure ? facts().members[0] : facts().members[1];
  ASSERT_TRUE(failed.failure);
  EXPECT_EQ(failed.node_index, 0);
  EXPECT_EQ(failed.failure->rank, 1);
  EXPECT_EQ(failed.failure->exit_code, 137);
  EXPECT_EQ(failed.failure->signal, 9);
  EXPECT_EQ(failed.failure->last_step, 2200);
  EXPECT_EQ(failed.failure->asked, std::nullopt);
  ASSERT_THAT(facts().peer_reports, SizeIs(2));
  EXPECT_EQ(facts().peer_reports[0].lost_rank, 1);
  order_.previous_generation = 1;
  order_.generation = 2;
  coordinator_.publish(order_);
  for (size_t node = 0; node < channels_.size(); ++node) {
    const std::vector<ToAgent> now = told(node);
    ASSERT_THAT(now, SizeIs(1));
    EXPECT_TRUE(now[0].has_fenced());
    EXPECT_EQ(earlier_.understood(now[0]).DebugString(), now[0].DebugString());
    EXPECT_EQ(now[0].fence().generation(), 2);
  }
}

/// It was said of generation 2, which the present coordinator does not let them join.
TEST_F(EarlierAgentsTest, SayWhatCameOfARun) {
  come_back();
  for (FromAgent message : recorded_.at("again-0").said) {
    if (!message.has_result()) continue;
    message.mutable_fence()->set_generation(1);
    ASSERT_TRUE(channels_[0]->send(message));
  }
  coordinator_.poll(Duration::zero());
  const auto result = facts().result;
  ASSERT_TRUE(result);
  EXPECT_EQ(result->state_hash, "17ee54ca1a05dde124db526a3e73df92");
  EXPECT_EQ(result->step, 3000);
  EXPECT_EQ(result->validation_loss, 1.0079689335252624);
  EXPECT_FALSE(result->best);
  EXPECT_FALSE(result->stopped_early);
  ASSERT_TRUE(result->peak_memory);
  EXPECT_EQ(result->peak_memory->measured_bytes, 8040448);
}

}  // namespace
}  // namespace trainyard::control
