#include "common/api/memory_limit.h"

#include <string_view>

#include "common/text/document.h"
#include "common/text/quantity.h"

namespace trainyard::api {
namespace {

using text::Node;

const Node* member(const Node* object, std::string_view key) {
  return object == nullptr ? nullptr : object->find(key);
}

/// The container whose exit ends the pod.
const Node* trainer_in(const Node& pod_template) {
  const Node* containers = member(pod_template.find("spec"), "containers");
  if (containers == nullptr || containers->items.empty()) return nullptr;
  for (const Node& container : containers->items) {
    const Node* name = container.find("name");
    if (name != nullptr && name->string == kTrainerContainer) return &container;
  }
  return &containers->items.front();
}

}  // namespace

std::optional<int64_t> trainer_memory_limit(const TrainingJobSpec& spec) {
  if (!spec.pod_template) return std::nullopt;
  const text::Document whole = text::parse_json(spec.pod_template->json);
  const Node* resources = member(trainer_in(whole.root), "resources");
  const Node* memory = member(member(resources, "limits"), "memory");
  if (memory == nullptr) return std::nullopt;
  constexpr int64_t kThousandths = 1000;
  const auto amount = text::parse_quantity(memory->string);
  return amount ? std::optional(*amount / kThousandths) : std::nullopt;
}

}  // namespace trainyard::api
