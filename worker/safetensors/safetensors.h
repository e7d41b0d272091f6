#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/dtype.h"
#include "common/base/error.h"
#include "common/io/file.h"

/// The safetensors file format: 8 bytes little-endian header length, a JSON header, tensor data.
/// Source: https://github.com/huggingface/safetensors (README, "Format").
namespace trainyard::safetensors {

/// The header limit of the reference implementation.
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;

/// One tensor of a file.
struct Entry {
  std::string name;
  std::string dtype_name;      ///< as written: "F32", "BOOL" ...
  std::optional<DType> dtype;  ///< nullopt for a known type that this project does not compute with
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< bytes from the start of the data section
  int64_t end = 0;
};

/// A parsed header: entries ascending by `begin`.
struct Header {
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  int64_t data_offset = 0;  ///< where the data section begins in the file
};

/// Reads the header from a file's first bytes. `prefix` must hold the whole header (8 bytes + its
/// length); `file_bytes` is the size of the whole file. Errors, all kInvalidData with the tensor
/// and the numbers: header too short, too long or beyond the file; not JSON; not UTF-8; a duplicate
/// name; an unknown dtype; a shape whose size overflows or does not match its offsets; offsets out
/// of range, overlapping, leaving a hole or bytes at the end.
Result<Header> parse_header(std::span<const std::byte> prefix, int64_t file_bytes);

/// Elements times bytes of one; nullopt when that exceeds int64. Sizes of 0 are allowed by the
/// format.
std::optional<int64_t> byte_size(std::span<const int64_t> shape, int64_t bytes);

/// What a writer says of one tensor.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
};

/// A header for these tensors laid out one after the other in this order, its length, and so where
/// the data begins, a multiple of `alignment`: a multiple of 8. Errors: kInvalidData for a
/// duplicate name or a size that overflows.
Result<std::string> make_header(std::span<const TensorInfo> tensors,
                                const std::map<std::string, std::string>& metadata,
                                size_t alignment = 8);

/// A mapped safetensors file.
class File {
 public:
  /// Errors: kNotFound, kIo, kInvalidData (as parse_header, with the path before it).
  static Result<File> open(const std::filesystem::path& path);
  const Header& header() const { return header_; }
  /// nullptr when there is no such tensor.
  const Entry* find(std::string_view name) const;
  /// The tensor's bytes; valid while this object lives.
  std::span<const std::byte> data(const Entry& entry) const;

 private:
  File(MappedFile mapped, Header header) : mapped_(std::move(mapped)), header_(std::move(header)) {}
  MappedFile mapped_;
  Header header_;
};

/// Puts bytes of a tensor `offset` bytes from its first one.
using WriteAt = std::function<Status(int64_t offset, std::span<const std::byte> bytes)>;

/// Writes a file durably and atomically (temporary, fsync, rename, fsync of the directory).
/// `give(i, write)` writes tensor i when its turn comes, in pieces of any order, each byte once.
/// Errors: those of `give`; kIo; kInternal for bytes outside the tensor or of another number.
Status write_file(const std::filesystem::path& path, std::span<const TensorInfo> tensors,
                  const std::map<std::string, std::string>& metadata,
                  const std::function<Status(size_t tensor, const WriteAt& write)>& give);

}  // namespace trainyard::safetensors
