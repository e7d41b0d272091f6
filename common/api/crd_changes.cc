#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "common/api/crd_rules.h"
#include "common/api/field_kinds.h"
#include "common/api/numerics.h"

/// Which fields of a job may change, and when. A job that has not begun (its spec was refused, or
/// nobody has looked at it yet) may be changed at will: its first generation is written only over
/// the version that was looked at. What no table here names changes else only while the job is
/// suspended; a field that is added to the API is bound by that without further words. Of the
/// pod template's parts that the schema does not know, the server (1.34) compares the values of
/// equal keys and the number of keys: one key exchanged for another is not seen, and counts from
/// the next generation of pods on.
namespace trainyard::api::schema {
namespace {

constexpr char kNever[] = "never changes";
constexpr char kNeverOnceBegun[] = "never changes once the job has started";
constexpr char kWhileSuspended[] = "changes only while the job is suspended";
constexpr char kWhileEmpty[] = "changes only while the job is suspended and has no pods";

/// Fields of spec that change at any time, and those whose parts have rules of their own.
constexpr std::array<std::string_view, 11> kFreeSpec = {"suspend",
                                                        "activeDeadlineSeconds",
                                                        "ttlSecondsAfterFinished",
                                                        "progressPolicy",
                                                        "keepFailedPods",
                                                        "numNodes",
                                                        "elasticPolicy",
                                                        "managedBy",
                                                        "engine",
                                                        "failurePolicy",
                                                        "checkpointPolicy"};
/// Fields of spec that what runs depends on.
constexpr std::array<std::string_view, 4> kEmptySpec = {"numProcPerNode", "template", "agent",
                                                        "scheduling"};
constexpr std::array<std::string_view, 1> kFreeEngine = {"runtime"};
/// What a checkpoint depends on: another value would be another run.
constexpr std::array<std::string_view, 4> kNeverEngine = {"model", "numerics", "seed", "startFrom"};
constexpr std::array<std::string_view, 2> kFreeFailurePolicy = {"budgets", "joinTimeoutSeconds"};
constexpr std::array<std::string_view, 4> kFreeCheckpointPolicy = {
    "everySteps", "keepLast", "memoryEverySteps", "memoryReplicas"};
constexpr std::array<std::string_view, 2> kNeverCheckpointPolicy = {"storage", "path"};

template <size_t N>
bool is_in(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The visitor that names a struct's fields, and says which of them are always there: those that
/// are required or that the schema gives a default.
class FieldNames {
 public:
  struct Name {
    std::string name;
    bool always = false;
  };

  template <class T>
  void operator()(const Field& field, const T&) {
    bool always = field.need == Need::kRequired;
    if constexpr (kHasTable<T> || ApiEnum<T> || std::same_as<T, bool> ||
                  std::same_as<T, std::chrono::seconds> || std::same_as<T, double>) {
      always = always || field.default_note.empty();
    } else if constexpr (std::same_as<T, int64_t>) {
      always = always || (field.default_note.empty() && field.zero == Zero::kNumber);
    }
    names_.push_back({std::string(field.name), always});
  }

  template <class T>
  static std::vector<Name> of() {
    FieldNames visitor;
    const T initial{};
    visit_fields(visitor, initial);
    return visitor.names_;
  }

 private:
  std::vector<Name> names_;
};

/// "self.spec.agent == oldSelf.spec.agent"; a field that may be missing is the same when both lack
/// it.
std::string same(const std::string& parent, const FieldNames::Name& field) {
  const std::string now = "self" + parent + "." + field.name;
  const std::string before = "oldSelf" + parent + "." + field.name;
  const std::string equal = now + " == " + before;
  if (field.always) return equal;
  return "has(" + now + ") == has(" + before + ") && (!has(" + now + ") || " + equal + ")";
}

/// What a field without a default of the server says: `unset` where it is left out.
std::string value_of(const std::string& field, const std::string& unset) {
  return "(has(" + field + ") ? " + field + " : " + unset + ")";
}

/// The struct's fields are what they were; `same_field` may have a rule of its own for one.
template <class T>
std::string same_parts(const std::string& parent,
                       const std::function<std::string(const std::string& name)>& same_field) {
  std::string all;
  for (const FieldNames::Name& field : FieldNames::of<T>()) {
    std::string holds = same_field(field.name);
    if (holds.empty()) holds = same(parent, field);
    all += (all.empty() ? "(" : " && (") + holds + ")";
  }
  return all;
}

/// An earlier server wrote its default of grainTokens into jobs: the manifest of such a job,
/// applied again, does not change it.
std::string same_numerics() {
  const std::string parent = ".spec.engine.numerics";
  return same_parts<NumericsSpec>(parent, [&](const std::string& name) -> std::string {
    if (name != "grainTokens" && name != "keyBlock") return "";
    const std::string now = value_of("self" + parent + "." + name, "0");
    const std::string before = value_of("oldSelf" + parent + "." + name, "0");
    const std::string equal = now + " == " + before;
    if (name == "keyBlock") return equal;
    return equal + " || (" + now + " == 0 && " + before +
           " == " + std::to_string(kEarlierGrainTokens) + ")";
  });
}

/// contextMode, whose default an earlier server wrote, says nothing where no context ranks are.
std::string same_parallelism() {
  const std::string parent = ".spec.engine.parallelism";
  return same_parts<ParallelismSpec>(parent, [&](const std::string& name) -> std::string {
    if (name != "contextMode") return "";
    return "self" + parent + ".context == 1 || " +
           value_of("self" + parent + ".contextMode", "'Ulysses'") +
           " == " + value_of("oldSelf" + parent + ".contextMode", "'Ulysses'");
  });
}

/// True for a job that never had a pod. Ends with "||".
constexpr char kUnlessBegun[] =
    "!has(oldSelf.status) || !has(oldSelf.status.membership) || "
    "!has(oldSelf.status.membership.generation) || oldSelf.status.membership.generation == 0 || ";
/// True for one that was told to stop and has said that no pod is left. Ends with "||".
constexpr char kUnlessEmpty[] =
    "(oldSelf.spec.suspend && has(oldSelf.status.conditions) && oldSelf.status.conditions.exists("
    "condition, condition.type == 'Suspended' && condition.status == 'True')) || ";

/// True for one that is not complete. Ends with "||".
constexpr char kUnlessComplete[] =
    "!has(oldSelf.status) || !has(oldSelf.status.conditions) || "
    "!oldSelf.status.conditions.exists(condition, condition.type == 'Complete' && "
    "condition.status == 'True') || ";

CelRule unless_begun(const std::string& holds, const char* message, const std::string& path) {
  return {"", kUnlessBegun + ("(" + holds) + ")", message, path};
}
CelRule while_suspended(const std::string& holds, const char* message, const std::string& path) {
  return unless_begun("oldSelf.spec.suspend || (" + holds + ")", message, path);
}
CelRule while_empty(const std::string& holds, const std::string& path) {
  return unless_begun(kUnlessEmpty + ("(" + holds) + ")", kWhileEmpty, path);
}

void add_spec_changes(std::vector<CelRule>& rules) {
  for (const FieldNames::Name& field : FieldNames::of<TrainingJobSpec>()) {
    const std::string path = "spec." + field.name;
    if (is_in(kEmptySpec, field.name)) {
      rules.push_back(while_empty(same(".spec", field), path));
    } else if (!is_in(kFreeSpec, field.name)) {
      rules.push_back(while_suspended(same(".spec", field), kWhileSuspended, path));
    }
  }
  rules.push_back({"spec", same("", {"managedBy", false}), kNever, "managedBy"});
  rules.push_back(while_suspended("has(self.spec.elasticPolicy) == has(oldSelf.spec.elasticPolicy)",
                                  "is set or unset only while the job is suspended",
                                  "spec.elasticPolicy"));
  rules.push_back(while_suspended(
      "has(self.spec.elasticPolicy) || self.spec.numNodes == oldSelf.spec.numNodes",
      "changes only while the job is suspended, as it has no elasticPolicy", "spec.numNodes"));
  for (const FieldNames::Name& field : FieldNames::of<FailurePolicy>()) {
    if (is_in(kFreeFailurePolicy, field.name)) continue;
    rules.push_back(while_suspended(same(".spec.failurePolicy", field), kWhileSuspended,
                                    "spec.failurePolicy." + field.name));
  }
}

void add_engine_changes(std::vector<CelRule>& rules) {
  rules.push_back(unless_begun("has(self.spec.engine) == has(oldSelf.spec.engine)",
                               "is never set or unset once the job has started", "spec.engine"));
  rules.push_back({"",
                   std::string(kUnlessComplete) +
                       "!has(self.spec.engine) || !has(oldSelf.spec.engine) || "
                       "self.spec.engine.steps == oldSelf.spec.engine.steps",
                   "never changes once the job is complete; to train its model further, create "
                   "another job with engine.startFrom",
                   "spec.engine.steps"});
  for (const FieldNames::Name& field : FieldNames::of<EngineSpec>()) {
    if (is_in(kFreeEngine, field.name)) continue;
    const std::string path = "spec.engine." + field.name;
    const std::string holds = "!has(self.spec.engine) || !has(oldSelf.spec.engine) || (" +
                              (field.name == "numerics"      ? same_numerics()
                               : field.name == "parallelism" ? same_parallelism()
                                                             : same(".spec.engine", field)) +
                              ")";
    rules.push_back(is_in(kNeverEngine, field.name) ? unless_begun(holds, kNeverOnceBegun, path)
                                                    : while_empty(holds, path));
  }
}

void add_checkpoint_changes(std::vector<CelRule>& rules) {
  for (const FieldNames::Name& field : FieldNames::of<CheckpointPolicy>()) {
    if (is_in(kFreeCheckpointPolicy, field.name)) continue;
    const std::string path = "spec.checkpointPolicy." + field.name;
    const std::string holds = same(".spec.checkpointPolicy", field);
    rules.push_back(is_in(kNeverCheckpointPolicy, field.name)
                        ? unless_begun(holds, kNeverOnceBegun, path)
                        : while_suspended(holds, kWhileSuspended, path));
  }
}

}  // namespace

std::vector<CelRule> change_rules() {
  std::vector<CelRule> rules;
  add_spec_changes(rules);
  add_engine_changes(rules);
  add_checkpoint_changes(rules);
  return rules;
}

}  // namespace trainyard::api::schema
