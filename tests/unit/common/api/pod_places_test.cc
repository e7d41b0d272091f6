#include <string>

#include <gtest/gtest.h>

#include "common/api/decode.h"

namespace trainyard::api {
namespace {

constexpr char kEngine[] =
    "engine: {model: {preset: gpt2-100k, vocab: 256}, data: {tokens: [/t], sequenceLength: 8}, "
    "batch: {globalSequences: 4}, steps: 1}";
constexpr char kInjected[] = "numProcPerNode: 2";
constexpr char kAlone[] = "agent: None";

/// A job with storage whose trainer has `container` beside its name, and whose pod has the volume
/// `scratch` and `volumes`.
std::string job(const std::string& kind, const std::string& container,
                const std::string& volumes = "") {
  return "apiVersion: trainyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: job}\nspec:\n  " +
         kind +
         "\n  checkpointPolicy: {storage: {persistentVolumeClaim: {claimName: models}}}\n"
         "  template:\n    spec:\n      volumes: [{name: scratch, emptyDir: {}}" +
         (volumes.empty() ? "" : ", " + volumes) +
         "]\n      containers:\n      - {name: side, image: s, volumeMounts: [{name: scratch, "
         "mountPath: /etc/trainyard}]}\n      - {name: trainer, image: i, command: [run], " +
         container + "}\n";
}

std::string faults_of(const std::string& text, UnknownKeys unknown_keys = UnknownKeys::kRefuse) {
  std::string faults;
  for (const Fault& fault : check_training_job(text, {"", unknown_keys}).faults)
    faults += (faults.empty() ? "" : "\n") + to_string(fault);
  return faults;
}

std::string mount(const std::string& path, const std::string& more = "") {
  return "volumeMounts: [{name: scratch, mountPath: " + path + more + "}]";
}

TEST(PodPlacesTest, NothingIsPutWhereTheOperatorMountsSomething) {
  for (const char* path :
       {"/etc/trainyard", "/etc//trainyard/", "/etc/trainyard/more", "/var/run/trainyard/control",
        "/var/run/trainyard/control/x", "/var/lib/trainyard/checkpoints",
        "/var/lib/trainyard/checkpoints/job", "/var/lib/trainyard/checkpoints/./job/",
        "/var/lib/trainyard/checkpoints/job/g1-step-5"}) {
    const std::string text = job(kEngine, mount(path));
    const std::string found = faults_of(text);
    const std::string wanted =
        ": spec.template.spec.containers[1].volumeMounts[0].mountPath: found " + std::string(path) +
        ", wanted a place outside /";
    EXPECT_NE(found.find(wanted), std::string::npos) << path << "\nfound: " << found;
    EXPECT_EQ(found.find('\n'), std::string::npos) << "one fault, said once: " << found;
    EXPECT_NE(faults_of(text, UnknownKeys::kIgnore), "") << "the operator refuses it as well";
  }
  EXPECT_NE(faults_of(job(kInjected, mount("/var/run/trainyard/agent"))).find("the agent"),
            std::string::npos);
  EXPECT_NE(faults_of(job(kAlone, mount("/var/lib/trainyard/checkpoints/job"))), "");
  EXPECT_NE(faults_of(job(kEngine, "volumeDevices: [{name: scratch, devicePath: /etc/trainyard}]"))
                .find("volumeDevices[0].devicePath"),
            std::string::npos);
}

TEST(PodPlacesTest, EveryOtherPlaceIsFree) {
  for (const char* path :
       {"/etc", "/etc/trainyard-too", "/var/run/trainyard", "/var/run/trainyard/agent", "/dev/shm",
        "/var/lib/trainyard/checkpoints/job2", "/var/lib/trainyard/checkpoints/data"}) {
    EXPECT_EQ(faults_of(job(kEngine, mount(path))), "") << path;
  }
  for (const char* path : {"/etc/trainyard", "/var/run/trainyard/control",
                           "/var/run/trainyard/agent", "/var/lib/trainyard/checkpoints/job/logs"}) {
    EXPECT_EQ(faults_of(job(kAlone, mount(path))), "") << path;
  }
}

TEST(PodPlacesTest, SharedMemoryIsTheTemplatesIfItCanBeWrittenTo) {
  EXPECT_NE(faults_of(job(kEngine, mount("/dev/shm", ", readOnly: true"))).find("a writable mount"),
            std::string::npos);
}

TEST(PodPlacesTest, TheClaimForCheckpointsMayBeTheTemplatesOwnVolume) {
  const std::string claim = "{name: mine, persistentVolumeClaim: {claimName: models}}";
  const auto with = [&](const std::string& more) {
    return faults_of(
        job(kEngine,
            "volumeMounts: [{name: mine, mountPath: /var/lib/trainyard/checkpoints" + more + "}]",
            claim));
  };
  EXPECT_EQ(with(""), "");
  EXPECT_NE(with(", readOnly: true"), "");
  EXPECT_NE(with(", subPath: a"), "") << "where nobody looks for them";
  EXPECT_NE(with(", subPathExpr: $(POD_NAME)"), "") << "one for each pod";
  EXPECT_NE(
      faults_of(job(kEngine, "tty: true",
                    "{name: mine, persistentVolumeClaim: {claimName: models, readOnly: true}}"))
          .find("volumes[1].persistentVolumeClaim.readOnly: found true, wanted false"),
      std::string::npos);
}

}  // namespace
}  // namespace trainyard::api
