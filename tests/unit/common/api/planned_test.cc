#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/enum_names.h"
#include "common/api/job_fields.h"
#include "common/api/validate.h"
#include "common/text/document.h"
#include "tests/unit/common/api/field_walker.h"

namespace trainyard::api {
namespace {

using testing::HasSubstr;

TrainingJob good_job() {
  const CheckedJob checked = check_training_job(R"(
apiVersion: trainyard.dev/v1alpha1
kind: TrainingJob
metadata: {name: a}
spec:
  numNodes: 2
  engine:
    model: {preset: gpt2-3m}
    data: {tokens: [t], validation: [v], sequenceLength: 64}
    batch: {globalSequences: 16}
    steps: 10
)",
                                                {.file = "a.yaml"});
  EXPECT_EQ(error_of(checked.faults).message, "");
  return checked.job;
}

/// The visitor that sets what is planned, the `at`th of all such values of a job, and tells where.
class PlannedSetter {
 public:
  PlannedSetter(std::string path, int& at, std::string& where)
      : path_(std::move(path)), at_(at), where_(where) {}

  template <class T>
  void operator()(const Field& field, T& value) {
    const std::string path = text::join_path(path_, field.name);
    if (field.planned) {
      if constexpr (requires { set_other(value); }) {
        if (at_-- == 0) {
          set_other(value);
          where_ = path;
        }
      }
    } else if constexpr (ApiEnum<T>) {
      for (const EnumName<T>& entry : EnumTable<T>::kNames) {
        if (!entry.planned || at_-- != 0) continue;
        value = entry.value;
        where_ = path;
      }
    } else {
      descend(path, value);
    }
  }
  void constant(const Field&, std::string_view) {}

 private:
  template <class T>
  void descend(const std::string& path, T& value) {
    PlannedSetter inner(path, at_, where_);
    if constexpr (std::same_as<T, TrainingJobStatus>) {
      return;
    } else if constexpr (requires { visit_fields(inner, value); }) {
      visit_fields(inner, value);
    } else if constexpr (requires { visit_fields(inner, *value); }) {
      if (value) visit_fields(inner, *value);
    }
  }
  static void set_other(bool& value) { value = !value; }
  static void set_other(int64_t& value) { ++value; }
  template <ApiEnum E>
  static void set_other(E& value) {
    for (const EnumName<E>& entry : EnumTable<E>::kNames) {
      if (entry.value == value) continue;
      value = entry.value;
      break;
    }
  }
  template <class T>
  static void set_other(std::vector<T>& value) {
    value.emplace_back();
  }

  std::string path_;
  int& at_;
  std::string& where_;
};

TEST(PlannedTest, WhateverIsPlannedIsRefusedWithItsPath) {
  int planned = 0;
  for (;; ++planned) {
    TrainingJob job = good_job();
    int at = planned;
    std::string where;
    PlannedSetter setter("", at, where);
    visit_fields(setter, job);
    if (where.empty()) break;
    const std::string faults = error_of(validate(job, "a.yaml")).message;
    EXPECT_THAT(faults, HasSubstr(where + ": found")) << faults;
    EXPECT_THAT(faults, HasSubstr("(not in this version)")) << faults;
  }
  EXPECT_GT(planned, 15);
}

TEST(PlannedTest, EveryFieldThatIsPlannedHasAKindThatIsChecked) {
  int fields = 0;
  for_each_field([&](const std::string& path, const Field& field, auto type) {
    if (!field.planned) return;
    ++fields;
    using T = typename decltype(type)::type;
    const bool checked = std::same_as<T, bool> || std::same_as<T, int64_t> || ApiEnum<T> ||
                         !std::same_as<typename ItemOf<T>::Type, T>;
    EXPECT_TRUE(checked) << path;
  });
  EXPECT_GE(fields, 4);
}

}  // namespace
}  // namespace trainyard::api
