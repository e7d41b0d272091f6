#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/unit/house/source_tree.h"

namespace trainyard::house {
namespace {

/// A struct that many rooms of the engine share, and for each of its fields a file that reads it.
struct SharedStruct {
  std::string name;
  std::string header;
  std::map<std::string, std::string> readers;
};

const std::vector<SharedStruct> kShared = {
    {"Instruction",
     "worker/program/instruction.h",
     {{"kind", "worker/engine/interpreter.cc"},
      {"micro_batch", "worker/engine/interpreter.cc"},
      {"layer", "worker/engine/interpreter.cc"},
      {"unit", "worker/engine/interpreter.cc"}}},
    {"TensorSpec",
     "common/layout/layout.h",
     {{"name", "worker/model/param_spec.h"}, {"shape", "common/layout/layout.cc"}}},
    {"ParamSpec",
     "worker/model/param_spec.h",
     {{"tensor", "worker/state/units.cc"},
      {"init_key", "worker/model/initialize.cc"},
      {"init", "worker/model/initialize.cc"},
      {"decay", "worker/engine/optimizer.cc"},
      {"tie_group", "worker/state/units.cc"},
      {"unpadded_rows", "worker/hf/tensor_form.cc"},
      {"hugging_face_name", "worker/hf/import_model.cc"},
      {"hugging_face_transposed", "worker/hf/tensor_form.cc"}}},
    {"Value",
     "worker/model/model.h",
     {{"columns", "worker/memory/activation_plan.cc"},
      {"type", "worker/memory/activation_plan.cc"},
      {"gradient_type", "worker/memory/activation_plan.cc"},
      {"residual", "worker/memory/activation_plan.cc"}}},
};

std::string without_comments(const std::string& text) {
  return std::regex_replace(text, std::regex("//[^\n]*"), "");
}

/// The data members of a struct, in order.
std::vector<std::string> fields_of(const std::string& header, const std::string& name) {
  static const std::regex kField(R"(^[\w:<>, ]+ (\w+)( = [^;(]+)?;\s*$)");
  std::vector<std::string> fields;
  std::istringstream lines(without_comments(header));
  int depth = -1;  // -1: before the struct
  for (std::string line; std::getline(lines, line);) {
    if (depth < 0 && line == "struct " + name + " {") {
      depth = 1;
      continue;
    }
    if (depth < 0) continue;
    std::smatch found;
    if (depth == 1 && std::regex_match(line, found, kField)) fields.push_back(found[1]);
    for (const char c : line)
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (depth == 0) break;
  }
  return fields;
}

/// Whether code takes the field's value: to set it or to call a function of that name is no
/// reading.
bool reads(const std::string& code, const std::string& field) {
  const std::regex reading("(\\.|->)" + field + R"(\b(?!\s*=[^=])(?!\())");
  return std::regex_search(without_comments(code), reading);
}

std::string text_of(const std::string& path) {
  static const std::vector<SourceFile> kFiles = read_source_tree(testing_support::source_folder());
  for (const SourceFile& file : kFiles) {
    if (file.path == path) return file.text;
  }
  return "";
}

TEST(FieldReadersTest, EveryFieldOfASharedStructHasAReader) {
  for (const SharedStruct& shared : kShared) {
    std::vector<std::string> listed;
    for (const auto& [field, reader] : shared.readers) {
      listed.push_back(field);
      EXPECT_NE(reader, shared.header);
      EXPECT_FALSE(reader.starts_with("tests/")) << reader;
      EXPECT_TRUE(reads(text_of(reader), field))
          << reader << " does not read " << shared.name << "::" << field
          << ": name a file that does, or remove the field";
    }
    EXPECT_THAT(fields_of(text_of(shared.header), shared.name),
                testing::UnorderedElementsAreArray(listed))
        << shared.header << ": " << shared.name << ": name a reader of each field in this test";
  }
}

TEST(FieldReadersTest, FieldsAreFoundWithAndWithoutInitialisers) {
  EXPECT_THAT(fields_of("struct A {\n  int other = 0;\n};\nstruct B {\n  /// int no;\n"
                        "  std::vector<int> list = {0};  ///< why\n  A a;\n"
                        "  int count() const {\n    int local = 0;\n    return local;\n  }\n};\n",
                        "B"),
              testing::ElementsAre("list", "a"));
}

TEST(FieldReadersTest, SettingCallingAndCommentingAreNoReading) {
  for (const char* code : {"spec.unit = 3;", "Spec s{.unit = 3};", "spec.unit();", "// spec.unit\n",
                           "spec.units + 1"}) {
    EXPECT_FALSE(reads(code, "unit")) << code;
  }
  for (const char* code : {"f(spec.unit)", "spec->unit == 3", "spec.unit.empty()"})
    EXPECT_TRUE(reads(code, "unit")) << code;
}

}  // namespace
}  // namespace trainyard::house
