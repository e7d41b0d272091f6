#pragma once

#include <span>
#include <string_view>

namespace trainyard::apiserver {

/// What a bad manifest starts from.
enum class Base { kTemplate, kEngine };

/// A manifest that the API server must refuse: a good one, changed by a JSON merge patch (RFC
/// 7386).
struct BadManifest {
  Base base;
  std::string_view patch;
  std::string_view field;  ///< what the answer must name
};

std::span<const BadManifest> bad_manifests();

/// The good ones, as JSON.
std::string_view good_manifest(Base base);

}  // namespace trainyard::apiserver
