#include "control/local/references.h"

#include <gtest/gtest.h>

namespace trainyard::control::local {
namespace {

TEST(ReferencesTest, AreReplacedAsKubeletsDo) {
  const std::map<std::string, std::string> variables = {{"A", "one"}, {"B", "$(A)"}, {"EMPTY", ""}};
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"$(A)", "one"},
      {"x$(A)y$(A)", "xoneyone"},
      {"$(B)", "$(A)"},  // once
      {"[$(EMPTY)]", "[]"},
      {"$(NONE)", "$(NONE)"},
      {"$$(A)", "$(A)"},
      {"$$$(A)", "$one"},
      {"$A ${A} $", "$A ${A} $"},
      {"$(A", "$(A"},
      {"$($(A))", "$($(A))"},
      {"$()", "$()"},
      {"a$$b", "a$b"},
  };
  for (const auto& [text, expanded] : cases)
    EXPECT_EQ(expand_references(text, variables), expanded) << text;
}

}  // namespace
}  // namespace trainyard::control::local
