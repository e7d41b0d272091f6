#include "common/api/enum_names.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace trainyard::api {
namespace {

template <class E>
class EnumNamesTest : public testing::Test {};

using Enums =
    testing::Types<Task, ModelFamily, OptimizerName, ScheduleName, NumberFormat, ParallelMode,
                   PipelineSchedule, Recompute, ContextMode, Offload, NumericsMode, Transport, Isa,
                   MemoryCheck, AgentMode, SpareMode, RestartStrategy, FailureClass, RuleAction,
                   ExitCodeOperator, StallAction, SchedulingProvider, JobPhase, ConditionType,
                   ConditionStatus>;
TYPED_TEST_SUITE(EnumNamesTest, Enums);

TYPED_TEST(EnumNamesTest, GoBothWaysAndAreDistinct) {
  std::set<std::string_view> names;
  int expected = 0;
  for (const EnumName<TypeParam>& entry : EnumTable<TypeParam>::kNames) {
    EXPECT_EQ(static_cast<int>(entry.value), expected++) << entry.name;  // in order, none left out
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_EQ(name_of(entry.value), entry.name);
    EXPECT_EQ(enum_from_name<TypeParam>(entry.name), entry.value);
    std::string lower(entry.name);
    lower[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(lower[0])));
    EXPECT_FALSE(enum_from_name<TypeParam>(lower).has_value()) << lower;
  }
  EXPECT_EQ(name_of(static_cast<TypeParam>(expected)), "?");  // no enumerator after the last
  EXPECT_FALSE(enum_from_name<TypeParam>("").has_value());
}

TEST(EnumNamesOfApiTest, AreThoseOfTheManifest) {
  EXPECT_EQ(name_of(RestartStrategy::kRecreateAll), "RecreateAll");
  EXPECT_EQ(name_of(PipelineSchedule::kOneFOneB), "OneFOneB");
  EXPECT_EQ(name_of(NumberFormat::kBF16), "BF16");
  EXPECT_EQ(name_of(ModelFamily::kGPT2), "GPT2");
  EXPECT_EQ(name_of(Task::kCausalLM), "CausalLM");
}

}  // namespace
}  // namespace trainyard::api
