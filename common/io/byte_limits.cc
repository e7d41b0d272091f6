#include "common/io/byte_limits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

namespace trainyard {
namespace {

constexpr double kBytesPerKiB = 1024;
constexpr double kMostKiB = 1e15;  // more is not written down in digits

std::optional<rlim_t> found(const ByteLimit& limit) {
  rlimit here{};
  if (::getrlimit(limit.resource, &here) != 0 || here.rlim_cur == RLIM_INFINITY) return {};
  return here.rlim_cur;
}

}  // namespace

bool is_set(const ByteLimit& limit) { return found(limit).has_value(); }

Status check_limit(const ByteLimit& limit, double wanted, const std::string& for_what) {
  const std::optional<rlim_t> bytes = found(limit);
  if (!bytes || wanted <= static_cast<double>(*bytes)) return {};
  const auto wanted_kib =
      static_cast<int64_t>(std::min(std::ceil(wanted / kBytesPerKiB), kMostKiB));
  const std::string option = std::string("ulimit ") + limit.option;
  return Error{ErrorCode::kInvalidConfig, std::string(limit.name) + ": found " +
                                              std::to_string(*bytes / 1024) + " KiB (" + option +
                                              "), wanted at least " + std::to_string(wanted_kib) +
                                              for_what + "; raise it (" + option + " unlimited)"};
}

}  // namespace trainyard
