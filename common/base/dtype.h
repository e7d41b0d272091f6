#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trainyard {

/// Element types of tensors, on the wire, in memory and on disk.
enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64,
  kInt8,
  kUint8,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
};

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
      return 1;
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kUint16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUint32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
  }
  return 0;
}

/// The safetensors name: "F32", "BF16", "I64" ...
constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
    case DType::kFloat64:
      return "F64";
    case DType::kInt8:
      return "I8";
    case DType::kUint8:
      return "U8";
    case DType::kUint16:
      return "U16";
    case DType::kInt32:
      return "I32";
    case DType::kUint32:
      return "U32";
    case DType::kInt64:
      return "I64";
  }
  return "?";
}

/// The inverse of name_of; nullopt for a name that is none.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (uint8_t i = 0; i <= static_cast<uint8_t>(DType::kInt64); ++i) {
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace trainyard
