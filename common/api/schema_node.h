#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "common/text/document.h"

/// Internal to common/api: trees that are built, in the order in which they are to be written.
namespace trainyard::api::schema {

text::Node string_node(std::string_view value);
text::Node integer_node(int64_t value);
text::Node boolean_node(bool value);
/// A whole number as an integer, so that it is written without an exponent.
text::Node number_node(double value);
text::Node mapping_node(std::initializer_list<std::pair<std::string_view, text::Node>> members);
text::Node list_node(std::initializer_list<text::Node> items);

/// Appends a member, or replaces the one of that name.
void put(text::Node& mapping, std::string_view key, text::Node value);

/// The member of that name, made as an empty node of that kind where there is none.
text::Node& member(text::Node& mapping, std::string_view key, text::Kind kind);

/// The schema of a field below `root`, a schema itself: "spec.failurePolicy.rules.*.name", where
/// `*` stands for the items of a list. Checks that it exists.
text::Node& at(text::Node& root, std::string_view path);

}  // namespace trainyard::api::schema
