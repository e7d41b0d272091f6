// What the chart renders, as helm and the API server judge it.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/helm.h"
#include "tests/support/paths.h"

namespace trainyard::apiserver {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing_support::ChildProcess;
using testing_support::CommandResult;
using testing_support::run_command;

/// Something that an object of the rendering must say.
struct Expected {
  const char* kind;
  const char* pointer;
  const char* value;  ///< JSON; "absent": nothing there
};

/// Values, and what they come to. NAMESPACE is the test's.
struct ValueSet {
  const char* name;
  const char* values;  ///< YAML
  std::vector<Expected> expected;
};

constexpr char kPod[] = "/spec/template/spec";

std::vector<ValueSet> value_sets() {
  static const std::string pod = kPod;
  static std::vector<std::string> kept;
  kept.reserve(100);
  const auto at = [](const std::string& rest) {
    kept.push_back(pod + rest);
    return kept.back().c_str();
  };
  return {
      {"Defaults",
       "{}",
       {{"Deployment", "/spec/replicas", "1"},
        {"Deployment", at("/containers/0/image"), R"("trainyard/operator:0.1.0")"},
        {"Deployment", at("/securityContext/runAsNonRoot"), "true"},
        {"Deployment", at("/containers/0/securityContext/readOnlyRootFilesystem"), "true"},
        {"CustomResourceDefinition", "/metadata/annotations/helm.sh~1resource-policy",
         R"("keep")"}}},
      {"HighlyAvailable",
       "replicas: 3\npodDisruptionBudget: {enabled: true, minAvailable: 2}\n"
       "updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1}}\n"
       "priorityClassName: system-cluster-critical\n",
       {{"Deployment", "/spec/replicas", "3"},
        {"PodDisruptionBudget", "/spec/minAvailable", "2"},
        {"PodDisruptionBudget", "/spec/maxUnavailable", "absent"},
        {"Deployment",
         at("/topologySpreadConstraints/0/labelSelector/matchLabels/app.kubernetes.io~1component"),
         R"("operator")"}}},
      {"BudgetByShare",
       "podDisruptionBudget: {enabled: true, maxUnavailable: 50%}\n",
       {{"PodDisruptionBudget", "/spec/maxUnavailable", R"("50%")"}}},
      {"Digests",
       "image: {registry: registry.example, digest: "
       "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa}\n"
       "worker: {image: {tag: '7'}}\nimagePullSecrets: [{name: pull}]\n",
       {{"Deployment", at("/containers/0/image"),
         R"("registry.example/trainyard/operator@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")"},
        {"Deployment", at("/containers/0/args/7"), R"("--worker-image=trainyard/worker-cpu:7")"},
        {"Deployment", at("/imagePullSecrets/0/name"), R"("pull")"}}},
      {"ImageForGpus",
       "worker: {image: {registry: registry.example}, gpuImage: {repository: mine/worker-cuda},\n"
       "         gpuRuntimeClassName: nvidia}\n",
       {{"Deployment", at("/containers/0/args/9"),
         R"("--worker-gpu-image=registry.example/mine/worker-cuda:0.1.0")"},
        {"Deployment", at("/containers/0/args/10"), R"("--worker-rollout=OnRestart")"},
        {"Deployment", at("/containers/0/args/11"), R"("--gpu-runtime-class=nvidia")"}}},
      {"SomeNamespaces",
       "watchNamespaces: [NAMESPACE, default]\n",
       {{"Deployment", at("/containers/0/args/2"), R"("--namespaces=NAMESPACE,default")"},
        {"Role", "/rules/0/apiGroups/0", R"("trainyard.dev")"}}},
      {"SomeNamespacesAndNothingElse",
       "watchNamespaces: [NAMESPACE]\nrbac: {nodes: false, aggregate: false}\n"
       "control: {enabled: false}\n",
       {{"ClusterRole", "", "absent"},
        {"ClusterRoleBinding", "", "absent"},
        {"Role", "/rules/6/resourceNames", R"(["trainyard-ledgers"])"},
        {"Role", "/rules/6/verbs", R"(["get","patch"])"},
        {"Role", "/rules/7/verbs", R"(["create"])"}}},
      {"NoRights",
       "rbac: {create: false}\nserviceAccount: {create: false, name: mine}\n"
       "test: {enabled: false}\n",
       {{"ServiceAccount", "", "absent"}, {"Deployment", at("/serviceAccountName"), R"("mine")"}}},
      {"AccountOfACloud",
       "serviceAccount: {name: cloud, annotations: {example.com/role: trainer}}\n",
       {{"ServiceAccount", "/metadata/name", R"("cloud")"},
        {"ServiceAccount", "/metadata/annotations/example.com~1role", R"("trainer")"}}},
      {"WithoutDefinition",
       "crds: {enabled: false}\n",
       {{"CustomResourceDefinition", "", "absent"}}},
      {"DefinitionGoesWithTheRelease",
       "crds: {keep: false, annotations: {a: b}}\n",
       {{"CustomResourceDefinition", "/metadata/annotations/helm.sh~1resource-policy", "absent"},
        {"CustomResourceDefinition", "/metadata/annotations/a", R"("b")"}}},
      {"ControlStream",
       "control: {enabled: true}\n",
       {{"Service", "/spec/selector/trainyard.dev~1leader", R"("true")"},
        {"Secret", "/data", "absent"},
        {"Role", "/rules/2/resourceNames/0", R"("try-trainyard-control-tls")"}}},
      {"ControlStreamByCertManager",
       "control: {enabled: true, port: 9999, tls: {existingSecret: given}}\n",
       {{"Secret", "", "absent"},
        {"Role", "/rules/2/resourceNames/0", R"("given")"},
        {"Role", "/rules/2/verbs", R"(["get"])"},
        {"Service", "/spec/ports/0/port", "9999"}}},
      {"Monitored",
       "metrics:\n  serviceMonitor: {enabled: true, interval: 10s, labels: {release: prometheus},\n"
       "    relabelings: [{action: labeldrop, regex: pod}],\n"
       "    metricRelabelings: [{action: drop, sourceLabels: [le], regex: '0.1'}]}\n"
       "  podMonitor: {enabled: true}\n  dashboards: {enabled: true}\n"
       "  rules: {enabled: true, runbookBaseUrl: 'https://example.com/tree/'}\n",
       {{"ServiceMonitor", "/spec/endpoints/0/interval", R"("10s")"},
        {"ServiceMonitor", "/metadata/labels/release", R"("prometheus")"},
        {"PrometheusRule", "/spec/groups/0/name", R"("trainyard-operator")"},
        {"PrometheusRule", "/spec/groups/0/name", R"("trainyard-jobs")"},
        {"PrometheusRule", "/spec/groups/0/rules/4/annotations/runbook_url",
         R"("https://example.com/tree/docs/operating/alerts.md#trainyardjobfailed")"},
        {"ConfigMap", "/metadata/labels/grafana_dashboard", R"("1")"},
        {"PodMonitor", "/spec/selector/matchLabels/trainyard.dev~1member", R"("true")"}}},
      {"Unmonitored",
       "metrics: {enabled: false}\ncontrol: {enabled: false}\n",
       {{"Service", "", "absent"},
        {"Deployment", at("/containers/0/args/5"), R"("--metrics-bind-address=0")"}}},
      {"Walled",
       "networkPolicy:\n  enabled: true\n  metricsFrom: [{namespaceSelector: {matchLabels: {a: "
       "b}}}]\n"
       "  apiServerCidrs: [10.0.0.1/32]\n  extraIngress: [{ports: [{port: 1}]}]\n"
       "  extraEgress: [{ports: [{port: 53, protocol: UDP}]}]\n"
       "  controlFrom: [{ipBlock: {cidr: 10.1.0.0/16}}]\n"
       "control: {enabled: true}\n",
       {{"NetworkPolicy", "/spec/ingress/2/from/0/podSelector/matchExpressions/0/key",
         R"("trainyard.dev/job-name")"},
        {"NetworkPolicy", "/spec/ingress/2/from/1/ipBlock/cidr", R"("10.1.0.0/16")"},
        {"NetworkPolicy", "/spec/egress/0/to/0/ipBlock/cidr", R"("10.0.0.1/32")"},
        {"NetworkPolicy", "/spec/ingress/3/ports/0/port", "1"}}},
      {"PlacedWithCare",
       "nodeSelector: {disk: fast}\ntolerations: [{key: control, operator: Exists, effect: "
       "NoSchedule}]\n"
       "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
       "{nodeSelectorTerms: "
       "[{matchExpressions: [{key: a, operator: Exists}]}]}}}\n"
       "topologySpreadConstraints: []\npodLabels: {team: a}\npodAnnotations: {note: b}\n"
       "commonLabels: {all: c}\ncommonAnnotations: {every: d}\n"
       "resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}\n",
       {{"Deployment", at("/nodeSelector/disk"), R"("fast")"},
        {"Deployment", at("/topologySpreadConstraints"), "absent"},
        {"Deployment", "/spec/template/metadata/labels/team", R"("a")"},
        {"Deployment", "/spec/selector/matchLabels/team", "absent"},
        {"Service", "/metadata/labels/all", R"("c")"},
        {"ServiceAccount", "/metadata/annotations/every", R"("d")"}}},
      {"Extended",
       "extraArgs: [--kube-api-qps=5]\nextraEnv: [{name: A, value: b}]\n"
       "extraEnvFrom: [{configMapRef: {name: c}}]\nextraVolumes: [{name: tmp, emptyDir: {}}]\n"
       "extraVolumeMounts: [{name: tmp, mountPath: /tmp}]\nlog: {level: debug, format: text}\n"
       "kubeApi: {qps: 50, burst: 100}\nmaxConcurrentReconciles: 2\nprobes: {port: 9000}\n"
       "test: {image: 'registry.example/mine:1', command: ['true'], nodes: 3, namespace: "
       "default}\n",
       {{"Deployment", at("/containers/0/env/1/name"), R"("A")"},
        {"Deployment", at("/containers/0/volumeMounts/0/mountPath"), R"("/tmp")"},
        {"Deployment", at("/containers/0/ports/0/containerPort"), "9000"}}},
      {"ElectedByALeaseOfItsOwn",
       "watchNamespaces: [NAMESPACE]\n",
       {{"Deployment", at("/containers/0/args/1"),
         R"("--leader-elect-resource-name=try-trainyard-operator")"},
        {"Deployment", "/spec/strategy/type", R"("RollingUpdate")"},
        {"Role", "/rules/0/resourceNames", R"(["try-trainyard-operator"])"},
        {"Role", "/rules/0/verbs", R"(["get", "update"])"},
        {"Role", "/rules/1/verbs", R"(["create"])"}}},
      {"Alone",
       "leaderElection: {enabled: false}\n",
       {{"Deployment", at("/containers/0/args/0"), R"("--leader-elect=false")"},
        {"Deployment", at("/containers/0/args/1"), R"("--max-concurrent-reconciles=8")"},
        {"Deployment", "/spec/strategy/type", R"("Recreate")"}}},
      {"PartOfAnother",
       "enabled: true\nglobal: {registry: registry.example}\n",
       {{"Deployment", "/metadata/name", R"("try-trainyard-operator")"}}},
      {"Renamed",
       "fullnameOverride: other\ntest: {enabled: false}\nreplicas: 0\n",
       {{"Deployment", "/metadata/name", R"("other-operator")"}, {"Pod", "", "absent"}}},
  };
}

class ChartRenderTest : public testing_support::ChartTest {
 protected:
  void SetUp() override {
    ChartTest::SetUp();
    // A pod is tried only where its account is there.
    must({"create", "serviceaccount", "try-trainyard-test"});
    for (const char* name : {"podmonitors", "prometheusrules", "servicemonitors"}) {
      must({"apply", "--server-side", "-f",
            plane().folder() / "prometheus-operator" / (std::string(name) + ".yaml")});
    }
    // `kubectl wait` fails at once on one that has no conditions yet.
    ASSERT_TRUE(wait_until([&] {
      return kubectl({"wait", "--for=condition=Established", "--timeout=30s",
                      "crd/servicemonitors.monitoring.coreos.com",
                      "crd/podmonitors.monitoring.coreos.com",
                      "crd/prometheusrules.monitoring.coreos.com"})
                 .exit_code == 0;
    }));
  }

  std::string here(std::string text) const {
    return std::regex_replace(text, std::regex("NAMESPACE"), name_space());
  }
  std::filesystem::path file(const std::string& text) const {
    const std::filesystem::path path = folder() / ("values-" + std::to_string(++files_) + ".yaml");
    std::ofstream(path) << text;
    return path;
  }
  CommandResult render(const std::string& values) const {
    return helm({"template", "try", chart(), "--values", file(values)});
  }
  /// What the server would make of the manifests; fails the test where it refuses or warns.
  std::vector<Json> tried(const std::string& manifests) const {
    // Without a namespace of kubectl's own: every object names its own.
    const std::filesystem::path& home = plane().folder();
    const ChildProcess::Spec apply = {
        .argv = {home / "kubectl", "--kubeconfig", plane().kubeconfig(), "--cache-dir",
                 home / "kubectl-cache", "apply", "--server-side", "--force-conflicts",
                 "--dry-run=server", "--validate=strict", "-o", "json", "-f", file(manifests)},
        .output = folder() / "tried-out",
        .errors = folder() / "tried-err"};
    CommandResult result;
    // On a machine that others keep busy the server may not have come to it.
    for (int i = 0; i < 3; ++i) {
      result = run_command(apply, std::chrono::minutes(2));
      if (result.errors.find("Error from server (Timeout)") == std::string::npos) break;
    }
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    EXPECT_THAT(result.errors, Not(HasSubstr("Warning"))) << "among them Pod Security's";
    const Json list = Json::parse(result.output, nullptr, false);
    if (!list.is_object()) return {};
    return list.value("items", std::vector<Json>{list});
  }

 private:
  mutable int files_ = 0;
};

/// Some object of the kind says it; "absent" with an empty pointer: there is no such object.
bool holds(const std::vector<nlohmann::json>& objects, const Expected& expected,
           const std::string& value) {
  using Json = nlohmann::json;
  const Json::json_pointer pointer(expected.pointer);
  bool any = false;
  for (const Json& object : objects) {
    if (object["kind"] != expected.kind) continue;
    // Helm's tests and users' roles bring objects of the same kinds.
    const std::string name = object["metadata"].value("name", "");
    const bool other =
        name.ends_with("-test") || name.ends_with("-edit") || name.ends_with("-view");
    if (other && *expected.pointer != '\0') continue;
    if (value == "absent") {
      if (*expected.pointer == '\0' || object.contains(pointer)) return false;
      any = true;
    } else if (object.contains(pointer) && object[pointer] == Json::parse(value)) {
      return true;
    }
  }
  return value == "absent" && (any || *expected.pointer == '\0');
}

TEST_F(ChartRenderTest, HelmFindsNothingToCarpAt) {
  const CommandResult lint = helm({"lint", "--strict", chart()});
  EXPECT_EQ(lint.exit_code, 0) << lint.output << lint.errors;
  EXPECT_THAT(lint.output, HasSubstr("0 chart(s) failed"));
}

TEST_F(ChartRenderTest, TheServerTakesEverySetOfValues) {
  for (const ValueSet& set : value_sets()) {
    SCOPED_TRACE(set.name);
    const CommandResult rendering = render(here(set.values));
    ASSERT_EQ(rendering.exit_code, 0) << rendering.errors;
    const std::vector<Json> objects = tried(rendering.output);
    EXPECT_GT(objects.size(), 3U);
    for (const Expected& expected : set.expected) {
      EXPECT_TRUE(holds(objects, expected, here(expected.value)))
          << expected.kind << " " << expected.pointer << " wanted " << expected.value;
    }
    for (const Json& object : objects) {
      if (object["kind"] != "ConfigMap" || !object["data"].contains("job.yaml")) continue;
      const Json job = tried(object["data"]["job.yaml"]).at(0);
      EXPECT_EQ(job["kind"], "TrainingJob");
    }
  }
}

TEST_F(ChartRenderTest, EveryFlagIsOneOfTheOperators) {
  const CommandResult help =
      run_command({.argv = {testing_support::program_path("trainyard-operator"), "--help"},
                   .output = folder() / "help",
                   .errors = folder() / "help-errors"},
                  std::chrono::minutes(1));
  ASSERT_EQ(help.exit_code, 0) << help.errors;
  std::set<std::string> flags;
  for (const ValueSet& set : value_sets()) {
    const std::string values = here(set.values);
    const std::string text = render(values).output;
    const std::regex flag(R"(\n +- (--[a-z-]+)=)");
    for (std::sregex_iterator match(text.begin(), text.end(), flag), end; match != end; ++match)
      flags.insert((*match)[1]);
  }
  EXPECT_GE(flags.size(), 10U);
  for (const std::string& flag : flags)
    EXPECT_THAT(help.output, HasSubstr(flag));
}

TEST_F(ChartRenderTest, TyposAndWrongTypesAreRefusedByName) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"replica: 2", "replica"},
      {"image: {tagg: x}", "tagg"},
      {"image: {digest: 'sha256:12'}", "/image/digest"},
      {"image: {pullPolicy: Sometimes}", "/image/pullPolicy"},
      {"worker: {images: {}}", "images"},
      {"replicas: two", "/replicas"},
      {"leaderElection: true", "/leaderElection"},
      {"log: {level: loud}", "/log/level"},
      {"watchNamespaces: [A_B]", "/watchNamespaces/0"},
      {"metrics: {serviceMonitor: {enable: true}}", "enable"},
      {"metrics: {port: 99999}", "/metrics/port"},
      {"crds: {kept: true}", "kept"},
      {"control: {tls: {secret: a}}", "secret"},
      {"tolerations: [{keys: a}]", "keys"},
      {"resources: {limit: {cpu: 1}}", "limit"},
      {"podDisruptionBudget: {maxUnavailable: half}", "/podDisruptionBudget/maxUnavailable"},
      {"extraArgs: [metrics]", "/extraArgs/0"},
      {"test: {node: 1}", "node"},
      {"image: {registry: 'https://registry.example'}", "/image/registry"},
      {"worker: {image: {repository: 'mine/worker:1'}}", "/worker/image/repository"},
      {"extraArgs: ['--log-level debug']", "/extraArgs/0"},
      {"metrics: {podMonitor: {port: '9400'}}", "/metrics/podMonitor/port"},
      // Nothing where the templates find something.
      {"control: null", "control"},
      {"log: {level: null}", "/log"},
      // What the schema cannot say.
      {"podDisruptionBudget: {enabled: true, maxUnavailable: null}", "podDisruptionBudget"},
      {"{replicas: 2, leaderElection: {enabled: false}}", "leaderElection.enabled"},
      {"{metrics: {enabled: false, serviceMonitor: {enabled: true}}}", "metrics.serviceMonitor"},
      {"{watchNamespaces: [a], test: {namespace: b}}", "test.namespace"},
      {"test: {image: a}", "test.command"},
      {"probes: {port: 8080}", "probes.port"},
      {"control: {port: 8080}", "control.port"},
      // What would be refused later: by the server, of a Service's name; by the operator.
      {"fullnameOverride: a.b", "/fullnameOverride"},
      // What would be cut off.
      {"fullnameOverride: a-name-that-is-longer-than-forty-characters", "/fullnameOverride"},
      {"nameOverride: A", "/nameOverride"},
      {"control: {tls: {existingSecret: a.b}}", "/control/tls/existingSecret"},
  };
  for (const auto& [values, named] : wrong) {
    const CommandResult refused = render(values);
    EXPECT_NE(refused.exit_code, 0) << values;
    const std::string path = std::regex_replace(std::string(named), std::regex("^/"), "");
    const std::string dotted = std::regex_replace(path, std::regex("/"), ".");
    EXPECT_TRUE(refused.errors.find(named) != std::string::npos ||
                refused.errors.find(dotted) != std::string::npos)
        << values << "\nwanted " << named << " in: " << refused.errors;
  }
}

/// 2024 is a good name of a namespace and, without quotes, a number; so is "no", and no text at
/// all.
TEST_F(ChartRenderTest, NamesThatLookLikeNumbersStayNames) {
  const CommandResult rendering =
      helm({"template", "7", chart(), "--values",
            file("watchNamespaces: ['no', '7']\nserviceAccount: {name: '5'}\n"
                 "probes: {liveness: null, readiness: null}\n"
                 "control: {tls: {existingSecret: '3'}}\n"
                 "metrics: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true},\n"
                 "  rules: {enabled: true}, dashboards: {enabled: true}}\n"
                 "networkPolicy: {enabled: true}\npodDisruptionBudget: {enabled: true}\n")});
  ASSERT_EQ(rendering.exit_code, 0) << rendering.errors;
  const std::string& text = rendering.output;
  const std::regex bare(
      R"(\n *(?:namespace|name|serviceAccountName|app\.kubernetes\.io/instance): )"
      R"((?:no|[0-9]+)\n)");
  std::smatch found;
  EXPECT_FALSE(std::regex_search(text, found, bare)) << found.str();
  for (const char* quoted :
       {"namespace: \"no\"\n", "namespace: \"7\"\n", "app.kubernetes.io/instance: \"7\"\n",
        "serviceAccountName: \"5\"\n", "resourceNames: [\"3\"]\n"}) {
    EXPECT_THAT(text, HasSubstr(quoted));
  }
}

/// No label selects a pod with hostNetwork: whoever installs the policy hears of it.
TEST_F(ChartRenderTest, NotesSayWhatAPolicyKeepsOut) {
  const auto notes = [this](const std::string& values) {
    // The definition is there already, and not helm's.
    return must_helm({"install", "try", chart(), "--dry-run=client", "--values", file(values),
                      "--set", "crds.enabled=false"});
  };
  const auto warned = HasSubstr("unless networkPolicy.controlFrom names");
  EXPECT_THAT(notes("{}"), Not(warned));
  EXPECT_THAT(notes("networkPolicy: {enabled: true}"), warned);
  EXPECT_THAT(notes("{networkPolicy: {enabled: true}, control: {enabled: false}}"), Not(warned));
  EXPECT_THAT(notes("networkPolicy: {enabled: true, controlFrom: [{ipBlock: {cidr: 10.0.0.0/8}}]}"),
              Not(warned));
}

/// Nobody owns the names that the images have without a registry.
TEST_F(ChartRenderTest, NothingIsPulledUnlessARegistryOrADigestIsNamed) {
  const auto policies = [this](const std::string& values) {
    const CommandResult rendering = helm({"template", "try", chart(), "--values", file(values)});
    EXPECT_EQ(rendering.exit_code, 0) << rendering.errors;
    const std::regex policy("(?:imagePullPolicy: |--worker-image-pull-policy=)(\\w+)");
    std::set<std::string> found;
    for (auto at = std::sregex_iterator(rendering.output.begin(), rendering.output.end(), policy);
         at != std::sregex_iterator(); ++at) {
      found.insert((*at)[1]);
    }
    return found;
  };
  const std::string digest = "sha256:" + std::string(64, 'a');
  using Policies = std::set<std::string>;
  EXPECT_EQ(policies("{}"), Policies{"Never"}) << "of the operator, its test and the worker";
  EXPECT_EQ(policies("{image: {registry: r.example}, worker: {image: {digest: '" + digest + "'}}}"),
            Policies{"IfNotPresent"});
  EXPECT_EQ(policies("{image: {repository: r.example/mine}}"), (Policies{"IfNotPresent", "Never"}));
  EXPECT_EQ(policies("{image: {pullPolicy: Always}, worker: {image: {pullPolicy: Always}}}"),
            Policies{"Always"});
}

TEST_F(ChartRenderTest, WhatIsMadeOfTheChartIsUpToDate) {
  const CommandResult check =
      run_command({.argv = {testing_support::source_path("tools/chart"), "--check"},
                   .environment = {{"HELM", plane().folder() / "helm"}},
                   .output = folder() / "chart-out",
                   .errors = folder() / "chart-err"},
                  std::chrono::minutes(1));
  EXPECT_EQ(check.exit_code, 0) << check.output << check.errors;
}

TEST_F(ChartRenderTest, TheManifestForKubectlIsTaken) {
  std::ifstream text(testing_support::source_path("manifests/install.yaml"));
  const std::string manifests((std::istreambuf_iterator<char>(text)), {});
  EXPECT_THAT(manifests, AllOf(HasSubstr("pod-security.kubernetes.io/enforce: restricted"),
                               Not(HasSubstr("managed-by"))));
  EXPECT_GE(tried(manifests).size(), 10U);
}

}  // namespace
}  // namespace trainyard::apiserver
