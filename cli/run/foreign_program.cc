#include "cli/run/foreign_program.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <sstream>
#include <string_view>

#include "common/text/document.h"

namespace trainyard::cli {
namespace {

using control::local::ProgramVariable;
using text::Node;

constexpr char kContainers[] = "spec.template.spec.containers";

/// As the manifest has it: `spec.template.spec.containers[0]`.
std::string path_of(const api::TrainingJobSpec& spec, const api::Container& container) {
  const auto place = static_cast<size_t>(&container - spec.pod_template->containers.data());
  return text::join_path(kContainers, place);
}

Error not_of_this_machine(const std::string& path, const std::string& name) {
  return {ErrorCode::kInvalidConfig,
          path + " (" + name +
              "): found valueFrom, which only a cluster can look up, wanted a value; set " + name +
              " in the environment of trainyard run, which the program inherits"};
}

/// The container in the template's JSON, for the fields that no rule looks at.
Node node_of(const api::TrainingJobSpec& spec, const api::Container& container) {
  const Node whole = text::parse_json(spec.pod_template->json).root;
  const auto place = static_cast<size_t>(&container - spec.pod_template->containers.data());
  return whole.find("spec")->find("containers")->items[place];
}

/// The text of a member; empty without one.
std::string text_of(const Node* object, std::string_view field) {
  const Node* found = object == nullptr ? nullptr : object->find(field);
  return found != nullptr && found->kind == text::Kind::kString ? found->string : std::string();
}

/// An item of envFrom.
struct EnvFrom {
  std::string name;    ///< of a ConfigMap or Secret
  std::string prefix;  ///< of every variable's name
  bool optional = false;
};

EnvFrom source_of(const Node& item) {
  const Node* reference = item.find("configMapRef");
  if (reference == nullptr) reference = item.find("secretRef");
  const Node* optional = reference == nullptr ? nullptr : reference->find("optional");
  return {text_of(reference, "name"), text_of(&item, "prefix"),
          optional != nullptr && optional->boolean};
}

/// The variables of a file as `kubectl create configmap --from-env-file` reads it: NAME=VALUE,
/// empty lines and lines that begin with '#'.
Status add_file(const std::string& text, const EnvFrom& source, const std::string& path,
                std::vector<ProgramVariable>& variables) {
  std::istringstream lines(text);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    line.erase(0, line.find_first_not_of(" \t"));
    if (line.empty() || line.starts_with('#')) continue;
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error{ErrorCode::kInvalidConfig, path + ": line " + std::to_string(number) +
                                                  " of the file for " + source.name + ": found " +
                                                  text::describe(line) + ", wanted NAME=VALUE"};
    }
    variables.push_back(
        {source.prefix + line.substr(0, equals), line.substr(equals + 1), /*refers=*/false});
  }
  return {};
}

Status add_sources(const Node& container, const std::string& path, const EnvFiles& files,
                   std::vector<ProgramVariable>& variables) {
  const Node* sources = container.find("envFrom");
  for (size_t i = 0; sources != nullptr && i < sources->items.size(); ++i) {
    const EnvFrom source = source_of(sources->items[i]);
    const std::string item = text::join_path(text::join_path(path, "envFrom"), i);
    const auto file = files.find(source.name);
    if (file != files.end()) {
      TRAINYARD_TRY(add_file(file->second, source, item, variables));
    } else if (!source.optional) {
      return Error{ErrorCode::kInvalidConfig,
                   item + ": found " + text::describe(source.name) +
                       ", which only a cluster can look up, wanted its variables as a file: "
                       "--env-from " +
                       source.name + "=FILE (lines NAME=VALUE)"};
    }
  }
  return {};
}

bool is_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

/// Fields that say where pods run, under which account and with how much, or that a local run
/// applies.
constexpr std::string_view kQuietOfContainer[] = {
    "name",         "image",        "imagePullPolicy", "command",
    "args",         "env",          "envFrom",         "workingDir",
    "volumeMounts", "resources",    "ports",           "terminationMessagePath",
    "resizePolicy", "tty",          "stdin",           "terminationMessagePolicy",
    "stdinOnce",    "startupProbe", "readinessProbe"};
constexpr std::string_view kQuietOfPod[] = {"containers",
                                            "volumes",
                                            "nodeSelector",
                                            "tolerations",
                                            "affinity",
                                            "schedulerName",
                                            "priorityClassName",
                                            "priority",
                                            "preemptionPolicy",
                                            "restartPolicy",
                                            "imagePullSecrets",
                                            "serviceAccountName",
                                            "serviceAccount",
                                            "hostNetwork",
                                            "hostIPC",
                                            "hostPID",
                                            "dnsPolicy",
                                            "dnsConfig",
                                            "enableServiceLinks",
                                            "nodeName",
                                            "overhead",
                                            "runtimeClassName",
                                            "hostUsers",
                                            "automountServiceAccountToken",
                                            "schedulingGates",
                                            "os",
                                            "readinessGates",
                                            "topologySpreadConstraints",
                                            "resources",
                                            "terminationGracePeriodSeconds"};

void add_unapplied(const Node& object, const std::string& path,
                   std::span<const std::string_view> quiet, std::vector<std::string>& fields) {
  for (const text::Member& member : object.members) {
    const bool empty =
        member.value.kind == text::Kind::kNull ||
        (member.value.items.empty() && member.value.members.empty() &&
         (member.value.kind == text::Kind::kSequence || member.value.kind == text::Kind::kMapping));
    const bool known = std::find(quiet.begin(), quiet.end(), member.key) != quiet.end();
    if (!known && !empty) fields.push_back(text::join_path(path, member.key));
  }
}

}  // namespace

const api::Container* trainer_container(const api::TrainingJobSpec& spec) {
  if (!spec.pod_template) return nullptr;
  const std::vector<api::Container>& containers = spec.pod_template->containers;
  for (const api::Container& container : containers) {
    if (container.name == api::kTrainerContainer) return &container;
  }
  return containers.size() == 1 ? &containers.front() : nullptr;
}

Result<std::vector<std::string>> foreign_command(const api::TrainingJobSpec& spec) {
  std::vector<std::string> command;
  if (spec.engine) return command;
  const api::Container* container = trainer_container(spec);
  if (container == nullptr || container->command.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "spec.template: found no command in container \"" +
                     std::string(api::kTrainerContainer) +
                     "\", wanted one, or spec.engine: this machine runs no images"};
  }
  command = container->command;
  command.insert(command.end(), container->args.begin(), container->args.end());
  return command;
}

Result<std::vector<ProgramVariable>> foreign_environment(const api::TrainingJobSpec& spec,
                                                         const VariableHere& here,
                                                         const EnvFiles& files) {
  std::vector<ProgramVariable> variables;
  const api::Container* container = spec.engine ? nullptr : trainer_container(spec);
  if (container == nullptr) return variables;
  const std::string path = path_of(spec, *container);
  TRAINYARD_TRY(add_sources(node_of(spec, *container), path, files, variables));
  std::map<std::string, size_t> newest;  // of one name the last counts, as in a cluster
  for (size_t i = 0; i < container->env.size(); ++i)
    newest[container->env[i].name] = i;
  for (size_t i = 0; i < container->env.size(); ++i) {
    const api::EnvVar& variable = container->env[i];
    if (variable.source == api::EnvSource::kValue) {
      variables.push_back({variable.name, variable.value});
    } else if (const std::optional<std::string> value = here(variable.name)) {
      variables.push_back({variable.name, *value, /*refers=*/false});
    } else if (variable.source == api::EnvSource::kCluster && newest[variable.name] == i) {
      return not_of_this_machine(text::join_path(text::join_path(path, "env"), i), variable.name);
    }
  }
  return variables;
}

std::string foreign_working_dir(const api::TrainingJobSpec& spec) {
  const Node node = node_of(spec, *trainer_container(spec));
  return text_of(&node, "workingDir");
}

Status check_foreign_folders(const api::TrainingJobSpec& spec) {
  const api::Container* container = spec.engine ? nullptr : trainer_container(spec);
  if (container == nullptr) return {};
  const std::string path = path_of(spec, *container);
  const Node node = node_of(spec, *container);
  const std::string working_dir = foreign_working_dir(spec);
  if (!working_dir.empty() && !is_folder(working_dir)) {
    return Error{ErrorCode::kInvalidConfig,
                 text::join_path(path, "workingDir") + ": found " + text::describe(working_dir) +
                     ", which is not a folder on this machine, wanted a folder"};
  }
  const Node* mounts = node.find("volumeMounts");
  for (size_t i = 0; mounts != nullptr && i < mounts->items.size(); ++i) {
    const Node* at = mounts->items[i].find("mountPath");
    std::error_code error;
    if (at == nullptr || std::filesystem::exists(at->string, error)) continue;
    const std::string item = text::join_path(text::join_path(path, "volumeMounts"), i);
    return Error{ErrorCode::kInvalidConfig,
                 text::join_path(item, "mountPath") + ": found " + text::describe(at->string) +
                     ", which does not exist on this machine, wanted the files that the program "
                     "finds there in a cluster: a local run mounts no volumes"};
  }
  return {};
}

std::vector<std::string> unapplied_fields(const api::TrainingJobSpec& spec) {
  std::vector<std::string> fields;
  const api::Container* container = spec.engine ? nullptr : trainer_container(spec);
  if (container == nullptr) return fields;
  const Node whole = text::parse_json(spec.pod_template->json).root;
  const Node* pod = whole.find("spec");
  add_unapplied(*pod, "spec.template.spec", kQuietOfPod, fields);
  const std::vector<Node>& containers = pod->find("containers")->items;
  for (size_t i = 0; i < containers.size(); ++i) {
    const std::string path = text::join_path(kContainers, i);
    if (&spec.pod_template->containers[i] == container) {
      add_unapplied(containers[i], path, kQuietOfContainer, fields);
    } else {
      fields.push_back(path + " (" + spec.pod_template->containers[i].name + ")");
    }
  }
  return fields;
}

}  // namespace trainyard::cli
