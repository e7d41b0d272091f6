#include "tests/support/operator_process.h"

#include <csignal>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "common/text/rfc3339.h"
#include "tests/support/api_objects.h"
#include "tests/support/paths.h"

namespace trainyard::testing_support {
namespace {

using Json = nlohmann::json;

/// For the first words of an operator, and for its end.
constexpr std::chrono::seconds kPatience{60};

/// kubectl as the administrator; its output.
std::string admin(const ControlPlane& plane, const std::filesystem::path& folder,
                  const std::vector<std::string>& arguments) {
  ChildProcess::Spec spec{.argv = {plane.folder() / "kubectl", "--kubeconfig", plane.kubeconfig()},
                          .output = folder / "admin-out",
                          .errors = folder / "admin-err"};
  spec.argv.insert(spec.argv.end(), arguments.begin(), arguments.end());
  CommandResult result = run_command(spec, std::chrono::minutes(1));
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  return std::move(result.output);
}

}  // namespace

void write_operator_kubeconfig(const ControlPlane& plane, const std::filesystem::path& path,
                               const OperatorAccess& access) {
  const std::filesystem::path folder = path.parent_path();
  Json config = Json::parse(admin(plane, folder, {"config", "view", "--raw", "-o", "json"}));
  Json user;
  if (access.token_file.empty()) {
    std::string token = admin(plane, folder,
                              {"create", "token", "trainyard-operator", "--namespace",
                               "trainyard-system", "--duration", "1h"});
    token.erase(token.find_last_not_of("\r\n") + 1);
    user["token"] = token;
  } else {
    user["tokenFile"] = access.token_file;
  }
  config["users"] = {{{"name", "operator"}, {"user", user}}};
  if (!access.server.empty()) config["clusters"][0]["cluster"]["server"] = access.server;
  config["contexts"][0]["context"]["user"] = "operator";
  config["contexts"][0]["context"]["namespace"] = "trainyard-system";
  std::ofstream(path) << config.dump(2);
}

OperatorProcess::OperatorProcess(const ControlPlane& plane, std::filesystem::path folder,
                                 const std::vector<std::string>& namespaces,
                                 const std::vector<std::string>& options,
                                 const OperatorAccess& access)
    : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
  write_operator_kubeconfig(plane, folder_ / "kubeconfig", access);
  start(folder_ / "kubeconfig", namespaces, options, access.program);
}

OperatorProcess::OperatorProcess(const std::filesystem::path& kubeconfig,
                                 std::filesystem::path folder,
                                 const std::vector<std::string>& namespaces,
                                 const std::vector<std::string>& options)
    : folder_(std::move(folder)) {
  std::filesystem::create_directories(folder_);
  start(kubeconfig, namespaces, options);
}

void OperatorProcess::start(const std::filesystem::path& kubeconfig,
                            const std::vector<std::string>& namespaces,
                            const std::vector<std::string>& options,
                            const std::filesystem::path& program) {
  std::string list;
  for (const std::string& name : namespaces)
    list += (list.empty() ? "" : ",") + name;
  ChildProcess::Spec spec{
      .argv = {program.empty() ? program_path("trainyard-operator") : program.string(),
               "--kubeconfig", kubeconfig, "--metrics-bind-address", "127.0.0.1:0",
               "--health-probe-bind-address", "127.0.0.1:0"},
      .output = folder_ / "out",
      .errors = folder_ / "err"};
  if (!list.empty()) spec.argv.insert(spec.argv.end(), {"--namespaces", list});
  spec.argv.insert(spec.argv.end(), options.begin(), options.end());
  process_ = std::make_unique<ChildProcess>(spec);
}

int OperatorProcess::stop() {
  // Before it has begun to speak, the signal would find the default action.
  const auto begun = std::chrono::steady_clock::now() + kPatience;
  while (log().empty() && std::chrono::steady_clock::now() < begun &&
         !process_->wait(std::chrono::milliseconds(5))) {
  }
  process_->signal(SIGTERM);
  const auto end = process_->wait(kPatience);
  return end && end->signal == 0 ? end->exit_code : -1;
}

std::string OperatorProcess::log() const {
  std::string text;
  for (const char* name : {"out", "err"}) {
    std::ifstream file(folder_ / name);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return text;
}

std::string OperatorProcess::said(const std::string& message, const std::string& key) const {
  std::ifstream log(folder_ / "err");
  for (std::string line; std::getline(log, line);) {
    const Json entry = Json::parse(line, nullptr, false);
    if (text(entry, "message") == message) return text(entry, key.c_str());
  }
  return "";
}

HttpAnswer OperatorProcess::page(const std::string& path) const {
  const std::string address = said("listening", "address");
  return address.empty() ? HttpAnswer{} : http_get(address, path);
}

void OperatorTest::restart_operator(const OperatorAccess& access,
                                    const std::vector<std::string>& options) {
  operator_.reset();
  operator_ = std::make_unique<OperatorProcess>(
      plane(), folder() / ("operator-" + std::to_string(++starts_)),
      std::vector<std::string>{name_space()}, options, access);
}

void OperatorTest::SetUp() {
  ApiServerTest::SetUp();
  restart_operator();
}

void OperatorTest::TearDown() {
  if (operator_) {
    if (HasFailure()) std::cout << "the operator said:\n" << operator_->log() << std::endl;
    EXPECT_EQ(operator_->stop(), 0) << operator_->log();
  }
  JobTest::TearDown();
}

JobTest::Json JobTest::job_manifest(const std::string& name, int nodes) {
  return job_of(name, nodes);
}

Json job_of(const std::string& name, int nodes) {
  const Json trainer = {{"name", "trainer"},
                        {"image", "registry.example/trainer:1"},
                        {"command", Json::array({"train"})}};
  return {{"apiVersion", "trainyard.dev/v1alpha1"},
          {"kind", "TrainingJob"},
          {"metadata", {{"name", name}}},
          {"spec",
           {{"numNodes", nodes},
            {"failurePolicy", {{"backoff", {{"initialSeconds", 0}}}}},
            {"template", {{"spec", {{"containers", Json::array({trainer})}}}}}}}};
}

std::vector<JobTest::Json> JobTest::pods(const std::string& job) const {
  std::vector<Json> found;
  const Json list = get({"pods", "-l", "trainyard.dev/job-name=" + job});
  if (!list.is_object()) return found;
  for (const Json& pod : list["items"]) {
    if (!pod["metadata"].contains("deletionTimestamp")) found.push_back(pod);
  }
  return found;
}

std::set<std::string> JobTest::names_of_pods(const std::string& job) const {
  std::set<std::string> names;
  for (const Json& pod : pods(job))
    names.insert(pod["metadata"]["name"]);
  return names;
}

std::string JobTest::member(const std::string& job, int index) const {
  for (const Json& pod : pods(job)) {
    const bool is_member = label(pod, kLabelMember) == "true";
    if (is_member && label(pod, kLabelNodeIndex) == std::to_string(index)) {
      return pod["metadata"]["name"];
    }
  }
  ADD_FAILURE() << "job " << job << " has no member of index " << index << ":\n"
                << must({"get", "pods", "--show-labels"});
  return "";
}

void JobTest::apply(const Json& job) const { must_with({"apply"}, job.dump()); }

void JobTest::patch(const std::string& job, const Json& spec) const {
  must({"patch", "tj", job, "--type=merge", "-p", Json({{"spec", spec}}).dump()});
}

JobTest::Json JobTest::job_status(const std::string& job) const {
  const Json object = get({"tj", job});
  return object.is_object() ? object.value("status", Json::object()) : Json::object();
}

std::string JobTest::condition(const std::string& job, const std::string& type) const {
  return text(condition_of(job_status(job), type), "status");
}

std::string JobTest::reason(const std::string& job, const std::string& type) const {
  return text(condition_of(job_status(job), type), "reason");
}

std::string JobTest::message(const std::string& job, const std::string& type) const {
  return text(condition_of(job_status(job), type), "message");
}

::testing::AssertionResult JobTest::reaches(const std::string& job, const std::string& type,
                                            const std::string& status) const {
  if (wait_until([&] { return condition(job, type) == status; })) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "waited for " << type << "=" << status << " of " << job
                                       << ", its status is " << job_status(job).dump(2);
}

::testing::AssertionResult JobTest::runs(const std::string& job, int ready, int restarts) const {
  const auto there = [&] {
    Json status = job_status(job);
    return status.is_object() && status.contains("nodes") &&
           status["nodes"].value("ready", 0) == ready &&
           status.value("restarts", Json::object()).value("total", 0) == restarts;
  };
  if (wait_until(there)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "waited for " << ready << " ready pods of " << job << " and " << restarts
         << " restarts, its status is " << job_status(job).dump(2);
}

void JobTest::end_container(const std::string& pod, int exit_code,
                            const std::string& message) const {
  end_container(pod, exit_code, message, nullptr);
}

void JobTest::end_container(const std::string& pod, int exit_code, const std::string& message,
                            const Json& conditions) const {
  const Json terminated = {{"exitCode", exit_code},
                           {"reason", exit_code == 0 ? "Completed" : "Error"},
                           {"message", message}};
  const Json container = {{"name", "trainer"}, {"image", "registry.example/trainer:1"},
                          {"imageID", ""},     {"ready", false},
                          {"restartCount", 0}, {"state", {{"terminated", terminated}}}};
  Json status = {{"phase", exit_code == 0 ? "Succeeded" : "Failed"},
                 {"containerStatuses", Json::array({container})}};
  if (!conditions.is_null()) status["conditions"] = conditions;
  must({"patch", "pod", pod, "--subresource=status", "--type=merge", "-p",
        Json({{"status", status}}).dump()});
}

void JobTest::make_nodes(const std::string& site, int count, int pods, bool kubelets) {
  const std::string now =
      text::format_time(std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now()));
  for (int i = 0; i < count; ++i) {
    const std::string name = site + "-" + std::to_string(nodes_.size());
    const Json room = {{"cpu", "32"}, {"memory", "256Gi"}, {"pods", std::to_string(pods)}};
    Json node = {{"apiVersion", "v1"},
                 {"kind", "Node"},
                 {"metadata", {{"name", name}, {"labels", {{"site", site}}}}},
                 {"status",
                  {{"allocatable", room},
                   {"capacity", room},
                   {"conditions", Json::array({{{"type", "Ready"},
                                                {"status", "True"},
                                                {"reason", "KubeletReady"},
                                                {"message", ""},
                                                {"lastHeartbeatTime", now},
                                                {"lastTransitionTime", now}}})}}}};
    node["spec"]["taints"] =
        Json::array({{{"key", "site"}, {"value", site}, {"effect", "NoSchedule"}}});
    if (kubelets) node["metadata"]["annotations"] = {{"kwok.x-k8s.io/node", "fake"}};
    must_with({"create"}, node.dump());
    nodes_.insert(name);
  }
}

void JobTest::renew_leases_of_nodes() const {
  const std::string now = text::format_micro_time(std::chrono::system_clock::now());
  Json leases = Json::array();
  for (const std::string& node : nodes_) {
    leases.push_back(
        {{"apiVersion", "coordination.k8s.io/v1"},
         {"kind", "Lease"},
         {"metadata", {{"name", node}}},
         {"spec", {{"holderIdentity", node}, {"leaseDurationSeconds", 40}, {"renewTime", now}}}});
  }
  must_with({"apply", "--namespace", "kube-node-lease"},
            Json({{"apiVersion", "v1"}, {"kind", "List"}, {"items", leases}}).dump());
}

void JobTest::make_claim() const {
  must_with({"apply"}, Json({{"apiVersion", "v1"},
                             {"kind", "PersistentVolume"},
                             {"metadata", {{"name", "pv-" + name_space()}}},
                             {"spec",
                              {{"capacity", {{"storage", "1Gi"}}},
                               {"accessModes", Json::array({"ReadWriteMany"})},
                               {"storageClassName", "none-" + name_space()},
                               {"hostPath", {{"path", "/nowhere"}}}}}})
                           .dump());
  must_with({"apply"}, Json({{"apiVersion", "v1"},
                             {"kind", "PersistentVolumeClaim"},
                             {"metadata", {{"name", "ckpt"}}},
                             {"spec",
                              {{"accessModes", Json::array({"ReadWriteMany"})},
                               {"storageClassName", "none-" + name_space()},
                               {"volumeName", "pv-" + name_space()},
                               {"resources", {{"requests", {{"storage", "1Gi"}}}}}}}})
                           .dump());
}

void JobTest::place(Json& job, const std::string& site) {
  Json& spec = job["spec"]["template"]["spec"];
  spec["nodeSelector"] = {{"site", site}};
  // Of a lost node the control plane evicts at once, not after the usual five minutes.
  spec["tolerations"] = Json::array({{{"key", "site"}, {"operator", "Exists"}}});
  for (const char* taint : {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}) {
    spec["tolerations"].push_back({{"key", taint},
                                   {"operator", "Exists"},
                                   {"effect", "NoExecute"},
                                   {"tolerationSeconds", 1}});
  }
}

void JobTest::lose_node(const std::string& name) const {
  must({"annotate", "node", name, "kwok.x-k8s.io/node-"});
  // As a kubelet would say it: no heartbeat has to be waited for in vain.
  const Json condition = {{"type", "Ready"},
                          {"status", "False"},
                          {"reason", "KubeletNotReady"},
                          {"message", "the node is lost"}};
  must({"patch", "node", name, "--subresource=status", "-p",
        Json({{"status", {{"conditions", Json::array({condition})}}}}).dump()});
}

void JobTest::TearDown() {
  ApiServerTest::TearDown();
  if (nodes_.empty()) return;
  std::vector<std::string> words = {"delete", "node", "--wait=false"};
  words.insert(words.end(), nodes_.begin(), nodes_.end());
  must(words);
}

}  // namespace trainyard::testing_support
