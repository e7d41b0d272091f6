#include <string>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/pod_types.h"

namespace trainyard::api {
namespace {

/// A job whose pod has `pod` beside its containers, and whose trainer has `container`, in the flow
/// style of YAML.
std::string manifest(const std::string& container, const std::string& pod) {
  return "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
         "  template:\n    spec:\n      containers:\n      - {name: trainer, image: i, command: "
         "[run]" +
         (container.empty() ? "" : ", " + container) + "}\n" +
         (pod.empty() ? "" : "      " + pod + "\n");
}

std::string faults_in(const std::string& text, UnknownKeys unknown_keys = UnknownKeys::kRefuse) {
  std::string faults;
  for (const Fault& fault : check_training_job(text, {"", unknown_keys}).faults)
    faults += (faults.empty() ? "" : "\n") + to_string(fault);
  return faults;
}

struct Wrong {
  const char* container;
  const char* pod;
  const char* fault;  ///< after "LINE: spec.template.spec."
};

// clang-format off
const Wrong kWrong[] = {
    {"workdir: /hello", "", R"(containers[0].workdir: found an unknown key, wanted a field of Container in Kubernetes 1.34.2: args, )"},
    {"imagePullPolice: Never", "", R"(containers[0].imagePullPolice: found an unknown key, wanted imagePullPolicy)"},
    {"imagePullPolicy: IfNotPresnt", "", R"(containers[0].imagePullPolicy: found "IfNotPresnt", wanted Always, IfNotPresent or Never)"},
    {"resources: {limits: {memory: 4GB}}", "", R"(containers[0].resources.limits.memory: found "4GB", wanted a quantity such as 500m, 2 or 4Gi)"},
    {"resources: {limits: {cpu: true}}", "", R"(containers[0].resources.limits.cpu: found true, wanted a quantity)"},
    {"resources: {limits: {cpu: -1}}", "", R"(containers[0].resources.limits.cpu: found -1, wanted a quantity)"},
    {"resources: {limits: {cpu: 1}, requests: {cpu: 1500m}}", "", R"(containers[0].resources.requests.cpu: found "1500m", wanted at most the limit, 1)"},
    {"resources: {requests: {example.com/gpu: 1}}", "", R"(containers[0].resources.requests.example.com/gpu: found no limit, wanted the same amount in limits)"},
    {"env: {A: b}", "", R"(containers[0].env: found a mapping, wanted a list)"},
    {"env: [{name: A, value: x, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]", "", R"(containers[0].env[0].valueFrom: found valueFrom beside value, wanted one of the two)"},
    {"env: [{name: A, valueFrom: {}}]", "", R"(containers[0].env[0].valueFrom: found nothing, wanted configMapKeyRef, fieldRef, )"},
    {"env: [{name: A=B}]", "", R"(containers[0].env[0].name: found "A=B", wanted printable ASCII without '=')"},
    {"envFrom: [{prefix: A}]", "", R"(containers[0].envFrom[0]: found nothing, wanted configMapRef or secretRef)"},
    {"ports: [{containerPort: 0}]", "", R"(containers[0].ports[0].containerPort: found 0, wanted a whole number from 1 to 65535)"},
    {"ports: [{containerPort: '80'}]", "", R"(containers[0].ports[0].containerPort: found "80", wanted a whole number from 1 to 65535)"},
    {"ports: [{containerPort: 80}, {containerPort: 80, protocol: TCP}]", "", R"(containers[0].ports[1].containerPort: found 80 TCP, wanted one other than item 0 of the list)"},
    {"ports: [{containerPort: 80, name: a}, {containerPort: 81, name: a}]", "", R"(containers[0].ports[1].name: found "a", wanted a name that no other port of the container has)"},
    {"ports: [{containerPort: 80, name: web_port}]", "", R"(containers[0].ports[0].name: found "web_port", wanted at most 15 lower-case letters)"},
    {"ports: [{containerPort: 80, hostPort: 81}]", "hostNetwork: true", R"(containers[0].ports[0].hostPort: found 81, wanted containerPort, as hostNetwork is true)"},
    {"volumeMounts: [{name: data, mountPath: /data}]", "", R"(containers[0].volumeMounts[0].name: found "data", wanted the name of one of the pod's volumes)"},
    {"volumeMounts: [{name: d, mountPath: /data}, {name: d, mountPath: /x/..//data/}]", "volumes: [{name: d}]", R"(containers[0].volumeMounts[1].mountPath: found /data/, wanted one other than item 0)"},
    {"volumeMounts: [{name: d}]", "volumes: [{name: d}]", R"(containers[0].volumeMounts[0].mountPath: found nothing, wanted a value)"},
    {"livenessProbe: {periodSeconds: 5}", "", R"(containers[0].livenessProbe: found nothing, wanted exec, grpc, httpGet or tcpSocket)"},
    {"livenessProbe: {httpGet: {port: 99999}}", "", R"(containers[0].livenessProbe.httpGet.port: found 99999, wanted a number from 1 to 65535 or the name of a port)"},
    {"securityContext: {runAsUser: root}", "", R"(containers[0].securityContext.runAsUser: found "root", wanted a whole number from 0 to 2147483647)"},
    {"tty: 1", "", R"(containers[0].tty: found 1, wanted true or false)"},
    {"lifecycle: {preStop: {exec: {command: [a], shell: b}}}", "", R"(containers[0].lifecycle.preStop.exec.shell: found an unknown key, wanted a field of ExecAction)"},
    {"", "tolerations: [{key: a, operator: Exist}]", R"(tolerations[0].operator: found "Exist", wanted Exists or Equal)"},
    {"", "tolerations: [{value: b}]", R"(tolerations[0].key: found nothing, wanted a key, or operator Exists for every taint)"},
    {"", "tolerations: [{key: a, operator: Exists, value: b}]", R"(tolerations[0].value: found "b", wanted no value, as operator is Exists)"},
    {"", "tolerations: [null]", R"(tolerations[0]: found nothing, wanted a value)"},
    {"", "nodeSelector: {gpu: 1}", R"(nodeSelector.gpu: found 1, wanted text: put it in quotes)"},
    {"", "nodeSelector: {'a b': c}", R"(nodeSelector."a b": found the key "a b", wanted a key such as name)"},
    {"", "serviceAccountName: Me", R"(serviceAccountName: found "Me", wanted a lower-case name)"},
    {"", "dnsPolicy: Cluster", R"(dnsPolicy: found "Cluster", wanted ClusterFirst, )"},
    {"", "volumes: [{name: a}, {name: a}]", R"(volumes[1].name: found a, wanted one other than item 0 of the list)"},
    {"", "volumes: [{name: a, emptyDir: {}, hostPath: {path: /a}}]", R"(volumes[0].hostPath: found hostPath beside emptyDir, wanted one of the two)"},
    {"", "volumes: [{name: a, emptyDir: {sizeLimit: 1GB}}]", R"(volumes[0].emptyDir.sizeLimit: found "1GB", wanted a quantity)"},
    {"", "volumes: [{name: A}]", R"(volumes[0].name: found "A", wanted a lower-case name of at most 63)"},
    {"", "initContainers: [{name: trainer, image: i}]", R"(containers[0].name: found "trainer", wanted a name that no other container has)"},
    {"", "initContainers: [{name: first}]", R"(initContainers[0].image: found nothing, wanted a container image)"},
    {"", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}]}]}}}", R"(affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: found 0 values, wanted at least one)"},
    {"", "terminationGracePeriodSeconds: -1", R"(terminationGracePeriodSeconds: found -1, wanted a whole number from 0)"},
    {"", "terminationGracePeriodSeconds: 60", R"(terminationGracePeriodSeconds: found 60, wanted none: it is checkpointPolicy.preemptionCheckpointSeconds + 30 s)"},
    {"", "activeDeadlineSeconds: 60", R"(activeDeadlineSeconds: found 60, wanted none: it would stop single pods; spec.activeDeadlineSeconds stops the job)"},
    {"", "hostname: me", R"(hostname: found "me", wanted none: pods are named JOB-INDEX)"},
    {"resources: {limits: {nvidia.com/gpu: 0.5}}", "", R"(containers[0].resources.limits.nvidia.com/gpu: found 0.5, wanted a whole number, as devices are not divided)"},
    {"resources: {limits: {nvidia.com/gpu: 1500m}}", "", R"(containers[0].resources.limits.nvidia.com/gpu: found "1500m", wanted a whole number, as devices are not divided)"},
    {"resources: {requests: {example.com/nic: 100m}}", "", R"(containers[0].resources.requests.example.com/nic: found "100m", wanted a whole number)"},
    {"livenessProbe: {exec: {command: [a]}, successThreshold: 2}", "", R"(containers[0].livenessProbe.successThreshold: found 2, wanted 1, as the first success counts)"},
    {"startupProbe: {exec: {command: [a]}, successThreshold: 3}", "", R"(containers[0].startupProbe.successThreshold: found 3, wanted 1, as the first success counts)"},
    {"readinessProbe: {exec: {command: [a]}, terminationGracePeriodSeconds: 3}", "", R"(containers[0].readinessProbe.terminationGracePeriodSeconds: found a number, wanted none)"},
    {"volumeMounts: [{name: d, mountPath: /a, subPath: /b}]", "volumes: [{name: d}]", R"(containers[0].volumeMounts[0].subPath: found "/b", wanted a relative path without ..)"},
    {"volumeMounts: [{name: d, mountPath: /a, subPathExpr: b/../../c}]", "volumes: [{name: d}]", R"(containers[0].volumeMounts[0].subPathExpr: found "b/../../c", wanted a relative path without ..)"},
    {"", "volumes: [{name: d, configMap: {name: c, items: [{key: k, path: ..data}]}}]", R"(volumes[0].configMap.items[0].path: found "..data", wanted a path that does not begin with ..)"},
    {"", "volumes: [{name: d, projected: {sources: [{configMap: {name: a, items: [{key: k, path: p}]}}, {secret: {name: b, items: [{key: k, path: p}]}}]}}]", R"(volumes[0].projected.sources[1].secret.items[0].path: found "p", wanted a path that no other source of the volume has)"},
    {"", "volumes: [{name: d, projected: {sources: [{serviceAccountToken: {path: token}}, {downwardAPI: {items: [{path: token, fieldRef: {fieldPath: metadata.name}}]}}]}}]", R"(volumes[0].projected.sources[1].downwardAPI.items[0].path: found "token", wanted a path that no other source)"},
};
// clang-format on

TEST(PodTemplateTest, WhatEveryApiServerRefusesIsAFault) {
  for (const Wrong& wrong : kWrong) {
    const std::string found = faults_in(manifest(wrong.container, wrong.pod));
    EXPECT_NE(found.find(std::string(": spec.template.spec.") + wrong.fault), std::string::npos)
        << wrong.container << wrong.pod << "\nfound: " << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << "one fault, said once: " << found;
  }
}

TEST(PodTemplateTest, WhatApiServersTakeIsNoFault) {
  EXPECT_EQ(faults_in(manifest(
                "workingDir: /w, imagePullPolicy: '', stdin: null, "
                "env: [{name: A, value: ''}, {name: A, valueFrom: {fieldRef: {fieldPath: "
                "status.podIP}}}], envFrom: [{secretRef: {name: s, optional: true}}], "
                "ports: [{containerPort: 53}, {containerPort: 53, protocol: UDP}], "
                "resources: {limits: {cpu: 0.5, memory: 4Gi, nvidia.com/gpu: 8}, requests: {cpu: "
                "250m}}, livenessProbe: {exec: {command: [a]}, successThreshold: 1}, "
                "readinessProbe: {httpGet: {port: web, path: /}}, "
                "volumeMounts: [{name: d, mountPath: /a}, {name: d, mountPath: /b, subPath: c}, "
                "{name: trainyard-shm, mountPath: /shared}]",
                "volumes: [{name: d, persistentVolumeClaim: {claimName: claim}}, {name: e}]\n"
                "      tolerations: [{operator: Exists}, {key: a, value: b}]\n"
                "      securityContext: {runAsUser: 1000, fsGroup: 0}\n"
                "      topologySpreadConstraints: [{maxSkew: 1, topologyKey: "
                "kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: "
                "{matchLabels: {app: x}}}]")),
            "");
}

TEST(PodTemplateTest, MetadataIsHeldAgainstItsTypeAsWell) {
  const auto metadata = [](const std::string& text) {
    return "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n"
           "  template: {metadata: " +
           text + ", spec: {containers: [{name: trainer, image: i, command: [run]}]}}\n";
  };
  EXPECT_EQ(faults_in(metadata("{labels: {app: a}, annotations: {example.com/a: 'x y'}}")), "");
  EXPECT_EQ(faults_in(metadata("{label: {app: a}}")),
            ":5: spec.template.metadata.label: found an unknown key, wanted labels");
  EXPECT_EQ(
      faults_in(metadata("{labels: {app: 'a b'}}")),
      ":5: spec.template.metadata.labels.app: found \"a b\", wanted at most 63 letters, digits, "
      "'-', '_' and '.', with a letter or digit at both ends");
  EXPECT_EQ(faults_in(metadata("{finalizers: [a/b]}")),
            ":5: spec.template.metadata.finalizers: found a list, wanted none: they block deletion "
            "of pods");
}

TEST(PodTemplateTest, ObjectsOfAServerAreLeftToIt) {
  EXPECT_EQ(faults_in(manifest("fieldOfTomorrow: 1", ""), UnknownKeys::kIgnore), "");
}

}  // namespace
}  // namespace trainyard::api
