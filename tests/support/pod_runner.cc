#include "tests/support/pod_runner.h"

#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "common/text/rfc3339.h"

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr char kAddress[] = "127.0.0.1";
constexpr char kLastWords[] = "/dev/termination-log";
constexpr int kSignalBase = 128;
constexpr std::chrono::seconds kInitTimeout{60};

std::string read_all(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// As a kubelet writes times: in whole seconds.
std::string now_text() {
  return text::format_time(
      std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
}

/// What stands for a container's path on this machine.
using Places = std::map<std::string, std::string>;

/// Text of the pod with the path that it begins with, if any, as it is on this machine.
std::string placed(const Places& places, std::string text) {
  for (const auto& [inside, outside] : places) {
    const bool below =
        text.starts_with(inside) && (text.size() == inside.size() || text[inside.size()] == '/');
    if (below) return outside + text.substr(inside.size());
  }
  return text;
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of("\r\n") + 1);
  return text;
}

const Json& trainer_of(const Json& pod) {
  for (const Json& container : pod["spec"]["containers"]) {
    if (container["name"] == "trainer") return container;
  }
  return pod["spec"]["containers"][0];
}

Json container_status(const Json& pod, const Json& state, bool ready) {
  return {{"name", trainer_of(pod)["name"]},
          {"image", trainer_of(pod).value("image", "none")},
          {"imageID", ""},
          {"ready", ready},
          {"restartCount", 0},
          {"state", state}};
}

Json ready_condition(bool ready) {
  return Json::array({{{"type", "Ready"}, {"status", ready ? "True" : "False"}}});
}

}  // namespace

void PodRunner::step() {
  const Json list = options_.get({"pods"});
  if (!list.is_object()) return;
  for (const Json& pod : list["items"]) {
    const std::string name = pod["metadata"]["name"];
    const bool placed = pod["spec"].contains("nodeName");
    const bool deleted = pod["metadata"].contains("deletionTimestamp");
    const auto found = running_.find(name);
    if (found == running_.end()) {
      if (placed && !deleted) start(pod);
      // Never started: nothing of it has to end.
      if (placed && deleted)
        options_.kubectl(
            {"delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found"});
      continue;
    }
    Running& running = found->second;
    if (deleted && !running.told_to_end && !running.reported) {
      running.told_to_end = true;
      running.process->signal(SIGTERM);
    }
    const bool ended = running.process->wait(std::chrono::milliseconds(0)).has_value();
    if (ended && !running.reported) report_end(pod, running);
    if (ended && deleted) {
      options_.kubectl(
          {"delete", "pod", name, "--force", "--grace-period=0", "--ignore-not-found"});
      running_.erase(found);
    }
  }
}

fs::path PodRunner::folder_of(const std::string& pod) const {
  return options_.folder / "pods" / pod;
}

/// A volume's content, made where it is missing.
fs::path PodRunner::volume(const Json& pod, const Json& volume) const {
  const std::string name = pod["metadata"]["name"];
  if (volume.contains("persistentVolumeClaim")) {
    const fs::path shared = claim(volume["persistentVolumeClaim"]["claimName"]);
    fs::create_directories(shared);
    return shared;
  }
  const fs::path folder = folder_of(name) / std::string(volume["name"]);
  fs::create_directories(folder);
  const auto add_config = [&](const std::string& config) {
    const Json object = options_.get({"configmap", config});
    for (const auto& [file, text] : object.at("data").items())
      std::ofstream(folder / file) << text.get<std::string>();
  };
  if (volume.contains("configMap")) add_config(volume["configMap"]["name"]);
  if (!volume.contains("projected")) return folder;
  for (const Json& source : volume["projected"]["sources"]) {
    if (source.contains("configMap")) add_config(source["configMap"]["name"]);
    if (!source.contains("serviceAccountToken")) continue;
    const Json& wanted = source["serviceAccountToken"];
    const std::string token =
        !forged_token_.empty()
            ? forged_token_
            : trimmed(
                  options_.kubectl({"create", "token", "default", "--audience", wanted["audience"],
                                    "--bound-object-kind", "Pod", "--bound-object-name", name,
                                    "--bound-object-uid", pod["metadata"]["uid"]}));
    std::ofstream(folder / std::string(wanted["path"])) << token;
  }
  return folder;
}

/// Where the container's volumes are on this machine, made where they are missing. Memory volumes
/// are the machine's own.
std::map<std::string, std::string> PodRunner::places_of(const Json& pod,
                                                        const Json& container) const {
  Places places = {{kLastWords, folder_of(pod["metadata"]["name"]) / "last-words"}};
  for (const Json& mount : container.value("volumeMounts", Json::array())) {
    for (const Json& candidate : pod["spec"]["volumes"]) {
      const bool memory = candidate.value("emptyDir", Json::object()).contains("medium");
      if (candidate["name"] == mount["name"] && !memory) {
        places[mount["mountPath"]] = volume(pod, candidate);
      }
    }
  }
  return places;
}

/// The container's variables; paths in volumes are those on this machine.
std::map<std::string, std::string> PodRunner::environment_of(const Json& pod,
                                                             const Json& container) const {
  const Places places = places_of(pod, container);
  std::map<std::string, std::string> environment;
  for (const Json& variable : container.value("env", Json::array())) {
    std::string value = variable.value("value", "");
    if (variable.contains("valueFrom")) {
      const std::string field = variable["valueFrom"]["fieldRef"]["fieldPath"];
      value = field == "metadata.uid" ? pod["metadata"]["uid"].get<std::string>() : kAddress;
    }
    environment[variable["name"]] = placed(places, value);
  }
  // Two pods on one machine cannot have one port.
  environment["TRAINYARD_METRICS_ADDRESS"] = "127.0.0.1:0";
  for (const auto& [name, value] : options_.environment)
    environment[name] = value;
  return environment;
}

void PodRunner::refresh_volumes() {
  const Json list = options_.get({"pods"});
  if (!list.is_object()) return;
  for (const Json& pod : list["items"]) {
    if (running_.contains(pod["metadata"]["name"])) environment_of(pod, trainer_of(pod));
  }
}

ChildProcess::Spec PodRunner::process_of(const Json& pod, const Json& container) const {
  const fs::path folder = folder_of(pod["metadata"]["name"]);
  fs::create_directories(folder);
  const Places places = places_of(pod, container);
  ChildProcess::Spec spec;
  const auto own = images_.find(container.value("image", ""));
  spec.argv = own == images_.end() ? entrypoint_ : own->second;
  if (container.contains("command")) {
    spec.argv.clear();
    for (const Json& word : container["command"])
      spec.argv.push_back(placed(places, word));
  }
  for (const Json& argument : container.value("args", Json::array()))
    spec.argv.push_back(placed(places, argument));
  spec.environment = environment_of(pod, container);
  spec.working_directory = folder;
  spec.output = folder / "out";
  spec.errors = folder / "err";
  return spec;
}

void PodRunner::start(const Json& pod) {
  const std::string name = pod["metadata"]["name"];
  for (const Json& container : pod["spec"].value("initContainers", Json::array())) {
    const auto end = ChildProcess(process_of(pod, container)).wait(kInitTimeout);
    if (!end || end->exit_code != 0) {
      ADD_FAILURE() << "init container of " << name << ": " << read_all(folder_of(name) / "err");
    }
  }
  const ChildProcess::Spec spec = process_of(pod, trainer_of(pod));
  Running& running = running_[name];
  running.uid = pod["metadata"]["uid"];
  running.process = std::make_unique<ChildProcess>(spec);
  patch_status(pod, {{"phase", "Running"},
                     {"podIP", kAddress},
                     {"podIPs", Json::array({{{"ip", kAddress}}})},
                     {"conditions", ready_condition(true)},
                     {"containerStatuses",
                      Json::array({container_status(pod, {{"running", Json::object()}}, true)})}});
}

void PodRunner::report_end(const Json& pod, Running& running) {
  const ChildEnd end = running.process->wait(std::chrono::milliseconds(0)).value_or(ChildEnd{});
  const int code = end.signal != 0 ? kSignalBase + end.signal : end.exit_code;
  const std::string name = pod["metadata"]["name"];
  std::string words = read_all(folder_of(name) / "last-words");
  if (words.empty()) words = output_of(name);
  constexpr size_t kMaxWords = 2048;
  if (words.size() > kMaxWords) words.erase(0, words.size() - kMaxWords);
  const Json terminated = {{"exitCode", code},
                           {"reason", code == 0 ? "Completed" : "Error"},
                           {"message", words},
                           {"finishedAt", now_text()}};
  running.reported = true;
  patch_status(pod, {{"phase", code == 0 ? "Succeeded" : "Failed"},
                     {"conditions", ready_condition(false)},
                     {"containerStatuses",
                      Json::array({container_status(pod, {{"terminated", terminated}}, false)})}});
}

void PodRunner::patch_status(const Json& pod, const Json& status) const {
  options_.kubectl(
      {"patch", "pod", pod["metadata"]["name"], "--subresource=status", "--type=merge", "-p",
       Json({{"status", status}}).dump(-1, ' ', false, Json::error_handler_t::replace)});
}

pid_t PodRunner::pid_of(const std::string& pod) const {
  const auto found = running_.find(pod);
  return found == running_.end() ? -1 : found->second.process->pid();
}

std::string PodRunner::output_of(const std::string& pod) const {
  return read_all(folder_of(pod) / "out") + read_all(folder_of(pod) / "err");
}

}  // namespace trainyard::testing_support
