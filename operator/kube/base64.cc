#include "operator/kube/base64.h"

#include <cstdint>

namespace trainyard::kube {
namespace {

int value_of(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  if (c == '/') return 63;
  return -1;
}

void append_three(uint32_t bits, std::string& out) {
  for (const unsigned shift : {16U, 8U, 0U})
    out += static_cast<char>((bits >> shift) & 0xffU);
}

Error bad(std::string why) { return {ErrorCode::kInvalidConfig, "no base64: " + std::move(why)}; }

}  // namespace

Result<std::string> decode_base64(std::string_view text) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int held = 0;     // of four characters
  int padding = 0;  // of those, '='
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n' || c == '\r') continue;
    const int value = value_of(c);
    if (c == '=') {
      ++padding;
      const bool fits = held >= 2 && held + padding <= 4;
      if (!fits) return bad("'=' at byte " + std::to_string(i));
      continue;
    }
    if (value < 0 || padding > 0) {
      return bad("byte " + std::to_string(i) + " is not of the alphabet, or follows '='");
    }
    bits = (bits << 6U) | static_cast<uint32_t>(value);
    if (++held < 4) continue;
    append_three(bits, out);
    bits = 0;
    held = 0;
  }
  if (held == 0 && padding == 0) return out;
  if (held + padding != 4) return bad("it ends within a group of four characters");
  bits <<= 6U * static_cast<unsigned>(padding);
  out += static_cast<char>((bits >> 16U) & 0xffU);
  if (padding == 1) out += static_cast<char>((bits >> 8U) & 0xffU);
  return out;
}

}  // namespace trainyard::kube
