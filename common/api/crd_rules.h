#pragma once

#include <string>
#include <vector>

#include "common/text/document.h"

/// Internal to common/api: what the schema says beyond single fields of the tables: the rules that
/// relate fields, in CEL, and which changes of a job are allowed. validate.h has the same rules and
/// more; these are checked when a manifest is applied, so that a mistake is answered at once.
namespace trainyard::api::schema {

/// One rule of CEL (kubernetes.io/docs/reference/using-api/cel).
struct CelRule {
  /// Of the schema that it stands at, as schema_node.h's at(). Not one with a default that the rule
  /// would refuse: the server tries defaults as they are written, without those within.
  std::string path;
  std::string rule;     ///< true for what is allowed
  std::string message;  ///< what is wanted; follows the field's path in the server's answer
  std::string field{};  ///< the field to be named, below `path`; empty: `path` itself
};

/// All rules about values, in the order of the manifest.
std::vector<CelRule> value_rules();

/// All rules about changes.
std::vector<CelRule> change_rules();

/// Writes the rules, and the patterns, list keys and enumerations that no field table has, into the
/// schema of the whole object.
void apply_rules(text::Node& root);

}  // namespace trainyard::api::schema
