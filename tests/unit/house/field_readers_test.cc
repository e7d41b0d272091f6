#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/api/enum_names.h"
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

/// A struct of the manifest's spec and the files that act on its fields: not those that check,
/// compare or print them.
struct ApiStruct {
  std::string name;
  std::vector<std::string> files;
  /// Fields that are not planned and that nothing has to read, each with the reason.
  std::map<std::string, std::string> unread;
};

const std::vector<ApiStruct> kApi = {
    {"TrainingJobSpec",
     {"control/plan.cc", "control/reconciler.cc", "control/policies/elastic.cc",
      "operator/render/environment.cc", "operator/render/pod.cc", "operator/cluster/kube_pods.cc",
      "control/plan_generation.cc"}},
    {"ElasticPolicy", {"common/api/job_size.cc", "control/policies/elastic.cc"}},
    {"SparesSpec", {"control/plan_spares.cc"}, {{"mode", "only SpareMode::kCold is another"}}},
    {"RestartBudget", {"control/policies/restart.cc"}},
    {"RestartBackoff", {"control/policies/restart.cc"}},
    {"OnExitCodes", {"control/policies/restart.cc"}},
    {"OnPodCondition", {"control/policies/restart.cc"}},
    {"FailureRule", {"control/policies/restart.cc"}},
    {"FailurePolicy",
     {"common/api/training_job.h", "control/policies/restart.cc", "control/reconciler.cc"}},
    {"ProgressPolicy", {"control/policies/progress.cc", "control/plan_generation.cc"}},
    {"PersistentVolumeClaim", {"operator/render/pod.cc"}},
    {"CheckpointStorage", {"operator/render/pod.cc"}},
    {"CheckpointPolicy",
     {"worker/rank/checkpoint_schedule.cc", "operator/render/pod.cc", "control/policies/scope.cc",
      "control/plan_status.cc", "common/api/pod_places.cc"}},
    {"SuccessRule", {"control/policies/success.cc"}},
    {"SuccessPolicy", {"control/policies/success.cc"}},
    {"TopologyTerm", {}, {{"key", "scheduling.topology is planned"}}},
    {"SchedulingSpec",
     {"operator/render/pod.cc", "control/plan_generation.cc"},
     {{"provider", "all but SchedulingProvider::kNone is planned"},
      {"queue", "provider None has none"}}},
    {"RendezvousSpec", {"operator/render/endpoints.cc"}},
    {"EngineSpec",
     {"worker/engine/engine.cc", "worker/rank/train_loop.cc"},
     {{"task", "all but Task::kCausalLM is planned"}}},
    {"ModelSpec",
     {"worker/model/decoder.cc", "worker/model/rope_table.cc", "worker/job/inputs.cc"},
     {{"preset", "the decoder writes the sizes that it stands for"}}},
    {"RopeScaling", {"worker/model/rope_table.cc"}},
    {"DataSpec",
     {"worker/job/inputs.cc", "worker/job/import_export.cc", "worker/engine/engine.cc"}},
    {"BatchSpec", {"worker/engine/engine.cc", "worker/engine/limits.cc"}},
    {"StartFrom", {"worker/rank/train_loop.cc"}},
    {"OptimizerSpec",
     {"worker/engine/optimizer.cc"},
     {{"name", "OptimizerName has one enumerator"}}},
    {"LearningRateSchedule", {"worker/engine/learning_rate.cc", "common/api/engine_spec.h"}},
    {"PrecisionSpec",
     {"worker/engine/engine.cc"},
     {{"loss_scale", "compute: FP16 is planned"}, {"reduce", "FP32 alone is taken"}}},
    {"ParallelismSpec",
     {"common/layout/mesh.cc", "worker/model/stages.cc", "worker/engine/limits.cc",
      "worker/rank/rank.cc", "common/api/engine_spec.h"}},
    {"NumericsSpec", {"worker/engine/limits.cc"}},
    {"RuntimeSpec",
     {"worker/device/cpu_device.cc", "worker/job/job_plan.cc", "worker/rank/train_loop.cc"}},
    {"EvaluationSpec", {"worker/rank/evaluations.cc", "worker/job/early_stop.h"}},
    {"ExportSpec", {"worker/job/import_export.cc"}},
};

std::string without_comments(const std::string& text) {
  std::string code;
  for (size_t at = 0; at < text.size();) {
    const size_t comment = std::min(text.find("//", at), text.size());
    code.append(text, at, comment - at);
    at = std::min(text.find('\n', comment), text.size());
  }
  return code;
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

/// What follows each naming of a member, as in `a.member`, in code without comments.
std::vector<std::string_view> uses_of(std::string_view code, std::string_view member,
                                      std::initializer_list<const char*> operators) {
  std::vector<std::string_view> behind;
  for (size_t at = code.find(member); at != std::string_view::npos;
       at = code.find(member, at + 1)) {
    const std::string_view before = code.substr(0, at);
    const std::string_view rest = code.substr(at + member.size());
    const bool ends = rest.empty() || (std::isalnum(rest[0]) == 0 && rest[0] != '_');
    if (ends && std::ranges::any_of(operators, [&](auto* op) { return before.ends_with(op); }))
      behind.push_back(rest.substr(std::min(rest.find_first_not_of(" \n"), rest.size())));
  }
  return behind;
}

/// Whether code without comments calls the member or takes its value.
bool uses(std::string_view code, std::string_view member) {
  return !uses_of(code, member, {".", "->", "::"}).empty();
}

/// Whether code takes the field's value: to set it or to call a function of that name is no
/// reading.
bool reads(const std::string& code, const std::string& field) {
  const std::string text = without_comments(code);
  return std::ranges::any_of(uses_of(text, field, {".", "->"}), [](std::string_view behind) {
    const bool sets = behind.starts_with("=") && !behind.starts_with("==");
    return !sets && !behind.starts_with("(");
  });
}

std::string text_of(const std::string& path) {
  static const std::vector<SourceFile> kFiles = read_source_tree(testing_support::source_folder());
  for (const SourceFile& file : kFiles) {
    if (file.path == path) return file.text;
  }
  return "";
}

/// A field of a manifest's table: what it is called there and in its struct.
struct ApiField {
  std::string name;
  std::string member;
  bool planned = false;
};

/// The tables `visit_fields` of a header, by struct.
std::map<std::string, std::vector<ApiField>> tables_of(const std::string& header) {
  static const std::regex kTable("Is<(\\w+)> S>");
  static const std::regex kField(R"re(\.name = "(\w+)"([\s\S]*?)\},\s*\w+\.(\w+)\);)re");
  std::map<std::string, std::vector<ApiField>> tables;
  for (std::sregex_iterator at(header.begin(), header.end(), kTable), end; at != end;) {
    const std::string name = (*at)[1];
    const auto begin = header.begin() + at->position();
    const auto stop = ++at == end ? header.end() : header.begin() + at->position();
    std::vector<ApiField>& fields = tables[name];
    for (std::sregex_iterator field(begin, stop, kField), none; field != none; ++field) {
      fields.push_back({(*field)[1], (*field)[3],
                        (*field)[2].str().find(".planned = true") != std::string::npos});
    }
  }
  return tables;
}

/// Values of the enum that this version takes.
template <class E>
int64_t values_of() {
  return std::ranges::count_if(api::EnumTable<E>::kNames,
                               [](const auto& entry) { return !entry.planned; });
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

TEST(FieldReadersTest, EveryFieldOfAManifestIsActedUpon) {
  std::map<std::string, std::vector<ApiField>> tables;
  for (const char* part : {"engine", "job", "model"})
    tables.merge(tables_of(text_of("common/api/" + std::string(part) + "_fields.h")));
  tables.erase("ObjectMeta");   // Kubernetes' own
  tables.erase("TrainingJob");  // its parts
  size_t count = 0;
  for (const ApiStruct& listed : kApi) {
    const auto table = tables.extract(listed.name);
    ASSERT_FALSE(table.empty()) << listed.name;
    for (const ApiField& field : table.mapped()) {
      const bool needs_none = field.planned || listed.unread.contains(field.member);
      const bool is_read = std::ranges::any_of(listed.files, [&](const std::string& file) {
        const std::string code = text_of(file);  // a header's struct may act upon its own
        return reads(code, field.member) ||
               (file.ends_with(".h") && code.find(field.member + " == ") != std::string::npos);
      });
      ++count;
      EXPECT_NE(needs_none, is_read)
          << listed.name << "::" << field.member << " (" << field.name << "): "
          << (needs_none ? "is read, though nothing should have to"
                         : "is accepted, and no file named here acts on it: name one that does, or "
                           "make the field planned");
    }
    for (const auto& [member, why] : listed.unread) {
      EXPECT_TRUE(std::ranges::any_of(
          table.mapped(),
          [&, &named = member](const ApiField& field) { return field.member == named; }))
          << listed.name << " has no " << member;
    }
  }
  EXPECT_GT(count, 150U);
  for (const auto& [name, fields] : tables)
    ADD_FAILURE() << name << ": name the files that act on its fields";
  EXPECT_EQ(values_of<api::Task>(), 1);
  EXPECT_EQ(values_of<api::OptimizerName>(), 1);
  EXPECT_EQ(values_of<api::SpareMode>(), 1);
  EXPECT_EQ(values_of<api::SchedulingProvider>(), 1);
}

TEST(FieldReadersTest, TablesAreReadFieldByField) {
  const auto tables = tables_of(
      "template <class V, Is<One> S>\nvoid visit_fields(V& visit, S& one) {\n"
      "  visit({.name = \"firstName\", .description = \"Of (both).\"},\n        one.first);\n"
      "  visit({.name = \"other\", .planned = true}, one.other);\n}\n"
      "template <class V, Is<Two> S>\nvoid visit_fields(V& visit, S& two) {\n"
      "  visit({.name = \"a\"}, two.b);\n}\n");
  ASSERT_EQ(tables.size(), 2U);
  ASSERT_EQ(tables.at("One").size(), 2U);
  EXPECT_EQ(tables.at("One")[0].member, "first");
  EXPECT_FALSE(tables.at("One")[0].planned);
  EXPECT_TRUE(tables.at("One")[1].planned);
  ASSERT_EQ(tables.at("Two").size(), 1U);
  EXPECT_EQ(tables.at("Two")[0].member, "b");
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
