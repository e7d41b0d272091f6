#include "operator/kube/uri.h"

namespace trainyard::kube {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

}  // namespace

std::string percent_encode(std::string_view text) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c)) {
      out += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += '%';
    out += kHex[byte >> 4U];
    out += kHex[byte & 15U];
  }
  // A segment of dots alone would be taken for a step in the path.
  if (out == ".") return "%2E";
  if (out == "..") return "%2E%2E";
  return out;
}

void Query::add(std::string_view key, std::string_view value) {
  if (value.empty()) return;
  if (!text_.empty()) text_ += '&';
  text_ += key;
  text_ += '=';
  text_ += percent_encode(value);
}

}  // namespace trainyard::kube
