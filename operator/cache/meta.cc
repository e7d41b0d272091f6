#include "operator/cache/meta.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "operator/kube/json_text.h"

namespace trainyard::cache {
namespace {

bool is_decimal(const std::string& text) {
  return !text.empty() && text.front() != '0' &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Result<Meta> read_meta(const nlohmann::json& object) {
  const nlohmann::json* metadata = kube::member(object, "metadata");
  if (metadata == nullptr) {
    return Error{ErrorCode::kInvalidData, "an object without a mapping metadata"};
  }
  Meta meta{kube::string_member(*metadata, "namespace"), kube::string_member(*metadata, "name"),
            kube::string_member(*metadata, "uid"),
            kube::string_member(*metadata, "resourceVersion")};
  if (meta.name.empty() || meta.uid.empty() || meta.resource_version.empty()) {
    return Error{ErrorCode::kInvalidData,
                 "metadata of " + key_of(meta) + ": name, uid and resourceVersion are wanted"};
  }
  return meta;
}

std::string version_of(const nlohmann::json& object) {
  const nlohmann::json* metadata = kube::member(object, "metadata");
  return metadata == nullptr ? std::string() : kube::string_member(*metadata, "resourceVersion");
}

std::string key_of(std::string_view ns, std::string_view name) {
  std::string key(ns);
  if (!key.empty()) key += '/';
  key += name;
  return key;
}

std::string key_of(const Meta& meta) { return key_of(meta.ns, meta.name); }

bool is_later_version(const std::string& a, const std::string& b) {
  if (!is_decimal(a) || !is_decimal(b)) return false;
  return a.size() != b.size() ? a.size() > b.size() : a > b;
}

}  // namespace trainyard::cache
