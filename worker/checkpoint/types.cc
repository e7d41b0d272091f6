#include "worker/checkpoint/types.h"

namespace trainyard::checkpoint {

std::string_view name_of(TensorKind kind) {
  switch (kind) {
    case TensorKind::kParameter:
      return "parameter";
    case TensorKind::kFirstMoment:
      return "m";
    case TensorKind::kSecondMoment:
      return "v";
    case TensorKind::kState:
      return "state";
  }
  return "?";
}

}  // namespace trainyard::checkpoint
