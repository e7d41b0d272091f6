#pragma once

#include <string>
#include <vector>

#include "common/base/error.h"

namespace trainyard::api {

/// One thing wrong with a document.
struct Fault {
  std::string file;    ///< as the user named it
  int line = 0;        ///< from 1; 0 where no line applies
  std::string field;   ///< path, for example "spec.engine.batch.globalSequences"
  std::string found;   ///< what is there
  std::string wanted;  ///< what may be there, and what to do

  bool operator==(const Fault&) const = default;
};

/// "file:line: field: found X, wanted Y"; parts that are empty are left out.
std::string to_string(const Fault& fault);

/// All faults, a line each, as one kInvalidConfig error.
Error error_of(const std::vector<Fault>& faults);

}  // namespace trainyard::api
