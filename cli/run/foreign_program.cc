#include "cli/run/foreign_program.h"

#include "common/text/document.h"

namespace trainyard::cli {
namespace {

/// As the manifest has it: `spec.template.spec.containers[0].env[2]`.
std::string path_of(const api::TrainingJobSpec& spec, const api::Container& container,
                    const api::EnvVar& variable) {
  const auto place = static_cast<size_t>(&container - spec.pod_template->containers.data());
  const auto index = static_cast<size_t>(&variable - container.env.data());
  const std::string path = text::join_path("spec.template.spec.containers", place);
  return text::join_path(text::join_path(path, "env"), index);
}

Error not_of_this_machine(const std::string& path, const std::string& name) {
  return {ErrorCode::kInvalidConfig,
          path + " (" + name +
              "): found valueFrom, which only a cluster can look up, wanted a value; set " + name +
              " in the environment of trainyard run, and the program has it from there"};
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

Result<std::map<std::string, std::string>> foreign_environment(
    const api::TrainingJobSpec& spec,
    const std::function<bool(const std::string& name)>& is_set_here) {
  std::map<std::string, std::string> environment;
  const api::Container* container = spec.engine ? nullptr : trainer_container(spec);
  if (container == nullptr) return environment;
  std::map<std::string, const api::EnvVar*> newest;  // of one name the last counts, as in a cluster
  for (const api::EnvVar& variable : container->env)
    newest[variable.name] = &variable;
  for (const auto& [name, variable] : newest) {
    if (variable->source == api::EnvSource::kValue) {
      environment[name] = variable->value;
    } else if (variable->source == api::EnvSource::kCluster && !is_set_here(name)) {
      return not_of_this_machine(path_of(spec, *container, *variable), name);
    }
  }
  return environment;
}

}  // namespace trainyard::cli
