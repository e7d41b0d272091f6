#include "tests/unit/common/api/bad_manifest.h"

#include "common/api/decode.h"

namespace trainyard::api {

std::string faults_of(const BadManifest& bad) {
  std::vector<std::string> lines = valid_manifest();
  lines.resize(static_cast<size_t>(kAppend));
  lines[static_cast<size_t>(bad.line) - 1] = bad.text;
  std::string text;
  for (const std::string& line : lines)
    text += line + '\n';
  std::string faults;
  for (const Fault& fault : check_training_job(text, {.file = ""}).faults) {
    if (!faults.empty()) faults += '\n';
    faults += to_string(fault).substr(1);
  }
  return faults;
}

}  // namespace trainyard::api
