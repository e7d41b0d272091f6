#include "common/api/fault.h"

namespace trainyard::api {

std::string to_string(const Fault& fault) {
  std::string text = fault.file;
  if (fault.line > 0) text += ":" + std::to_string(fault.line);
  if (!text.empty()) text += ": ";
  if (!fault.field.empty()) text += fault.field + ": ";
  if (fault.wanted.empty()) return text + fault.found;
  if (!fault.found.empty()) text += "found " + fault.found + ", ";
  return text + "wanted " + fault.wanted;
}

Error error_of(const std::vector<Fault>& faults) {
  std::string message;
  for (const Fault& fault : faults) {
    if (!message.empty()) message += '\n';
    message += to_string(fault);
  }
  return {ErrorCode::kInvalidConfig, std::move(message)};
}

}  // namespace trainyard::api
