#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainyard::text {

/// The largest amount of a quantity, in thousandths; larger ones count as this one.
inline constexpr int64_t kMostThousandths = 4'000'000'000'000'000'000;

/// A Kubernetes quantity such as "500m", "2", "1.5Gi" or "1e3" in thousandths, rounded up; nullopt
/// for other text and for amounts with a sign.
/// Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
std::optional<int64_t> parse_quantity(std::string_view text);

/// An English noun for so many: "rank", "ranks", "micro-batches".
std::string plural(int64_t count, std::string_view noun);
/// "1 rank", "2 ranks".
std::string counted(int64_t count, std::string_view noun);

/// Bytes for people: "412.5 MiB", from a GiB on "1.50 GiB", rounded.
std::string size_text(int64_t bytes);

}  // namespace trainyard::text
