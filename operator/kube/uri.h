#pragma once

#include <string>
#include <string_view>

namespace trainyard::kube {

/// Percent-encodes everything but unreserved characters (RFC 3986, 2.3), so that the result is one
/// path segment or one query value whatever the text holds.
std::string percent_encode(std::string_view text);

/// A query string in the making: "a=1&b=x%20y".
class Query {
 public:
  /// Adds key=value; nothing where the value is empty. The key is taken as it is.
  void add(std::string_view key, std::string_view value);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace trainyard::kube
