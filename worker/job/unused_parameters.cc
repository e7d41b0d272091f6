#include "worker/job/unused_parameters.h"

#include <algorithm>

namespace trainyard::engine {

/// Every layer of a model is computed for every token, so only learned positions may be left over.
std::string unused_parameters(const Model& model, int64_t sequence_length) {
  const auto table = std::find_if(model.params.begin(), model.params.end(),
                                  [](const ParamSpec& spec) { return spec.tensor.name == "wpe"; });
  if (table == model.params.end() || sequence_length >= model.max_positions) return "";
  return table->tensor.name + ": rows " + std::to_string(sequence_length) + " to " +
         std::to_string(model.max_positions - 1) + " of " + std::to_string(model.max_positions);
}

}  // namespace trainyard::engine
