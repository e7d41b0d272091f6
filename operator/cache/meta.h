#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "common/base/error.h"

namespace trainyard::cache {

/// Who an object is. A projection has one as its member `meta`.
struct Meta {
  std::string ns;
  std::string name;
  std::string uid;
  std::string resource_version;

  bool operator==(const Meta&) const = default;
};

/// metadata of an object. Errors: kInvalidData where name, uid or resourceVersion is no string or
/// empty.
Result<Meta> read_meta(const nlohmann::json& object);

/// metadata.resourceVersion; empty where there is none.
std::string version_of(const nlohmann::json& object);

/// "namespace/name", or "name" without a namespace.
std::string key_of(std::string_view ns, std::string_view name);
std::string key_of(const Meta& meta);

/// Whether `a` is a later version than `b`, of the same object or of lists of the same resource.
/// Versions are opaque, except that decimal ones are ordered (KEP-5504); others are never later.
bool is_later_version(const std::string& a, const std::string& b);

}  // namespace trainyard::cache
