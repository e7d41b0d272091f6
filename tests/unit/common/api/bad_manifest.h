#pragma once

#include <string>
#include <vector>

namespace trainyard::api {

/// A manifest with one thing wrong: the valid one with a line replaced (or, with kAppend, a line
/// more), and the faults that must be reported, a line each, without the file's name.
struct BadManifest {
  int line;
  const char* text;
  const char* faults;
};

/// The number of the line after the valid manifest's last.
inline constexpr int kAppend = 10;

/// A valid manifest of nine lines, the last ones inside `engine`.
inline std::vector<std::string> valid_manifest() {
  return {
      "apiVersion: trainyard.dev/v1alpha1",
      "kind: TrainingJob",
      "metadata: {name: job}",
      "spec:",
      "  engine:",
      "    model: {preset: gpt2-3m, vocab: 256}",
      "    data: {tokens: [a.tokens]}",
      "    batch: {globalSequences: 8}",
      "    steps: 100",
  };
}

/// The faults that check_training_job finds, in the form of BadManifest::faults.
std::string faults_of(const BadManifest& bad);

}  // namespace trainyard::api
