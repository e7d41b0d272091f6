#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
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
      {"unit", "worker/engine/interpreter.cc"},
      {"peer", "worker/program/rank_rules.cc"}}},
    {"TensorSpec",
     "common/layout/layout.h",
     {{"name", "worker/model/param_spec.h"},
      {"shape", "common/layout/layout.cc"},
      {"cut", "common/layout/layout.cc"}}},
    {"ParamSpec",
     "worker/model/param_spec.h",
     {{"tensor", "worker/state/units.cc"},
      {"init_key", "worker/model/initialize.cc"},
      {"init", "worker/model/initialize.cc"},
      {"decay", "worker/engine/optimizer.cc"},
      {"read", "worker/state/units.cc"},
      {"tied", "worker/state/units.cc"},
      {"unpadded_rows", "worker/model/initialize.cc"},
      {"hugging_face", "worker/hf/import_model.cc"},
      {"hugging_face_transposed", "worker/hf/tensor_form.cc"}}},
    {"Value",
     "worker/model/model.h",
     {{"columns", "worker/memory/activation_template.cc"},
      {"type", "worker/memory/activation_template.cc"},
      {"gradient_type", "worker/memory/activation_template.cc"},
      {"alias_of", "worker/memory/activation_template.cc"},
      {"residual", "worker/memory/activation_template.cc"},
      {"segments", "worker/model/parallelize.cc"},
      {"rows", "worker/model/model.cc"}}},
    {"StepWords",
     "worker/engine/optimizer.h",
     {{"control", "worker/engine/interpreter.cc"},
      {"overflow", "worker/engine/interpreter.cc"},
      {"loss_overflow", "worker/engine/interpreter.cc"},
      {"scalars", "worker/engine/interpreter.cc"}}},
};

/// A class that many rooms of the engine share; each of its public members is used outside it.
struct SharedClass {
  std::string name;
  std::string files;  ///< its header and source, without their endings
};

const std::vector<SharedClass> kClasses = {{"class Layout", "common/layout/layout"},
                                           {"struct Groups", "worker/comm/groups"},
                                           {"class Device", "worker/device/device"}};

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

/// The public functions and data members of a class, each name once.
std::set<std::string> members_of(const std::string& header, const std::string& declared) {
  const std::string code = without_comments(header);
  const size_t begin = code.find(declared + " {");
  if (begin == std::string::npos) return {};
  std::string body;  // without what functions do
  int depth = 0;
  for (size_t i = code.find('{', begin); i < code.size(); ++i) {
    if (code[i] == '{') ++depth;
    if (depth == 1) body += code[i];
    if (code[i] == '}' && --depth == 0) break;
  }
  body = body.substr(0, body.find("private:"));
  std::set<std::string> members;
  static const std::regex kMember(R"((\w+)(\(| = [^;()]+;|;))");
  for (std::sregex_iterator at(body.begin(), body.end(), kMember), end; at != end; ++at) {
    const std::string name = (*at)[1];
    const auto before = static_cast<size_t>(at->position());
    const bool is_destructor = before > 0 && body[before - 1] == '~';
    if (name != "const" && name != "default" && name != "operator" && !is_destructor)
      members.insert(name);
  }
  return members;
}

/// Whether code without comments calls the member or takes its value.
bool uses(const std::string& code, const std::string& member) {
  for (size_t at = code.find(member); at != std::string::npos; at = code.find(member, at + 1)) {
    const std::string_view before = std::string_view(code).substr(0, at);
    const size_t end = at + member.size();
    const bool ends = end == code.size() || (std::isalnum(code[end]) == 0 && code[end] != '_');
    if (ends && (before.ends_with(".") || before.ends_with("->") || before.ends_with("::")))
      return true;
  }
  return false;
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

TEST(FieldReadersTest, EveryMemberOfASharedClassHasAUser) {
  std::vector<SourceFile> files = read_source_tree(testing_support::source_folder());
  std::erase_if(files, [](const SourceFile& file) {
    return !file.path.starts_with("worker/") && !file.path.starts_with("cli/") &&
           !file.path.starts_with("bench/");
  });
  for (SourceFile& file : files)
    file.text = without_comments(file.text);
  for (const SharedClass& shared : kClasses) {
    const std::set<std::string> members = members_of(text_of(shared.files + ".h"), shared.name);
    EXPECT_GT(members.size(), 5U) << shared.name;
    for (const std::string& member : members) {
      const bool used = std::any_of(files.begin(), files.end(), [&](const SourceFile& file) {
        return !file.path.starts_with(shared.files + ".") && uses(file.text, member);
      });
      EXPECT_TRUE(used) << shared.files << ".h: nothing in worker/, cli/ or bench/ uses " << member
                        << " of " << shared.name << ": remove it";
    }
  }
}

TEST(FieldReadersTest, MembersArePublicFunctionsAndFields) {
  EXPECT_THAT(
      members_of("class A {\n public:\n  static A make(int x, B b = kB);\n"
                 "  int size() const { return inner(3); }\n  bool operator==(const A&) const"
                 " = default;\n  B* where = nullptr;\n  C c;\n\n private:\n  int no_;\n};",
                 "class A"),
      testing::ElementsAre("c", "make", "size", "where"));
  EXPECT_TRUE(uses("A::make(1)", "make"));
  EXPECT_TRUE(uses("a->size()", "size"));
  EXPECT_FALSE(uses(without_comments("a.sizes()  // a.size()"), "size"));
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
