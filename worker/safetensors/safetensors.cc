#include "worker/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "common/base/unique_fd.h"
#include "common/text/pointer_file.h"
#include "worker/safetensors/header_handler.h"

namespace trainyard::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little, "lengths and data are little-endian");

constexpr size_t kLengthBytes = 8;

Error invalid(const std::string& why) { return {ErrorCode::kInvalidData, why}; }

/// Every type the format knows and its size in bytes (README of the format, "Format"); types
/// smaller than a byte are refused.
constexpr std::pair<std::string_view, int64_t> kTypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
    {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
    {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};

std::optional<int64_t> element_bytes(std::string_view dtype) {
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return std::nullopt;
}

Status check_entry(Entry& entry, int64_t data_bytes) {
  const std::string what = "tensor \"" + entry.name + "\": ";
  const std::optional<int64_t> bytes = element_bytes(entry.dtype_name);
  if (!bytes) return invalid(what + "unknown dtype \"" + entry.dtype_name + "\"");
  entry.dtype = dtype_from_name(entry.dtype_name);
  const std::string offsets =
      "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin < 0 || entry.end < entry.begin || entry.end > data_bytes) {
    return invalid(what + offsets + " lie outside the data section of " +
                   std::to_string(data_bytes) + " bytes");
  }
  const std::optional<int64_t> wanted = byte_size(entry.shape, *bytes);
  if (!wanted) return invalid(what + "its shape's size overflows 64 bits");
  if (*wanted != entry.end - entry.begin) {
    return invalid(what + offsets + " hold " + std::to_string(entry.end - entry.begin) +
                   " bytes, its shape and dtype need " + std::to_string(*wanted));
  }
  return {};
}

/// Entries must follow each other without overlap or hole and fill the data section.
Status check_layout(std::span<const Entry> entries, int64_t data_bytes) {
  int64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position) {
      return invalid("tensor \"" + entry.name + "\": begins at byte " +
                     std::to_string(entry.begin) + ", the previous tensor ends at " +
                     std::to_string(position) +
                     (entry.begin < position ? "; they overlap" : "; there is a hole"));
    }
    position = entry.end;
  }
  if (position != data_bytes) {
    return invalid("the tensors end at byte " + std::to_string(position) +
                   " of the data section, the file at " + std::to_string(data_bytes));
  }
  return {};
}

}  // namespace

std::optional<int64_t> byte_size(std::span<const int64_t> shape, int64_t bytes) {
  int64_t total = bytes;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(total, size, &total)) return std::nullopt;
  }
  return total;
}

Result<Header> parse_header(std::span<const std::byte> prefix, int64_t file_bytes) {
  if (prefix.size() < kLengthBytes || file_bytes < static_cast<int64_t>(kLengthBytes)) {
    return invalid("has " + std::to_string(file_bytes) +
                   " bytes, a safetensors file has at least 8 for the header's length");
  }
  const auto* characters = reinterpret_cast<const char*>(prefix.data());
  if (const auto pointer = text::pointer_file({characters, prefix.size()})) {
    return invalid("found " + std::string(pointer->found) + "; " + std::string(pointer->advice));
  }
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return invalid("the header says it has " + std::to_string(length) + " bytes, the limit is " +
                   std::to_string(kMaxHeaderBytes) + "; not a safetensors file?");
  }
  const int64_t data_offset = static_cast<int64_t>(kLengthBytes + length);
  if (data_offset > file_bytes || static_cast<size_t>(data_offset) > prefix.size()) {
    return invalid("the header of " + std::to_string(length) +
                   " bytes reaches beyond the file of " + std::to_string(file_bytes) +
                   " bytes; the file is cut off");
  }
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()) + kLengthBytes, length);
  TRAINYARD_ASSIGN(Header header, parse_header_json(text));
  header.data_offset = data_offset;
  const int64_t data_bytes = file_bytes - data_offset;
  for (Entry& entry : header.entries)
    TRAINYARD_TRY(check_entry(entry, data_bytes));
  std::sort(header.entries.begin(), header.entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  TRAINYARD_TRY(check_layout(header.entries, data_bytes));
  return header;
}

Result<std::string> make_header(std::span<const TensorInfo> tensors,
                                const std::map<std::string, std::string>& metadata,
                                size_t alignment) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t position = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == "__metadata__") return invalid("no tensor may be called __metadata__");
    const std::optional<int64_t> bytes = byte_size(tensor.shape, size_of(tensor.dtype));
    int64_t end = 0;
    if (!bytes || __builtin_add_overflow(position, *bytes, &end)) {
      return invalid("tensor \"" + tensor.name + "\": its size overflows 64 bits");
    }
    json.push_back({tensor.name,
                    {{"dtype", name_of(tensor.dtype)},
                     {"shape", tensor.shape},
                     {"data_offsets", {position, end}}}});
    position = end;
  }
  if (json.size() != tensors.size() + (metadata.empty() ? 0 : 1)) {
    return invalid("two tensors have the same name");
  }
  std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const size_t total = (kLengthBytes + text.size() + alignment - 1) / alignment * alignment;
  text.resize(total - kLengthBytes, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxHeaderBytes) {
    return invalid("the header would have " + std::to_string(text.size()) +
                   " bytes, the limit is " + std::to_string(kMaxHeaderBytes));
  }
  const uint64_t length = text.size();
  std::string header(kLengthBytes, '\0');
  std::memcpy(header.data(), &length, kLengthBytes);
  return header + text;
}

Result<File> File::open(const std::filesystem::path& path) {
  TRAINYARD_ASSIGN(MappedFile mapped, MappedFile::open(path));
  Result<Header> header = parse_header(mapped.bytes(), static_cast<int64_t>(mapped.bytes().size()));
  if (!header) return header.error().with_context(path.string());
  return File(std::move(mapped), *std::move(header));
}

const Entry* File::find(std::string_view name) const {
  for (const Entry& entry : header_.entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

std::span<const std::byte> File::data(const Entry& entry) const {
  return mapped_.bytes().subspan(static_cast<size_t>(header_.data_offset + entry.begin),
                                 static_cast<size_t>(entry.end - entry.begin));
}

Status write_file(const std::filesystem::path& path, std::span<const TensorInfo> tensors,
                  const std::map<std::string, std::string>& metadata,
                  const std::function<Status(size_t tensor, const WriteAt& write)>& give) {
  TRAINYARD_ASSIGN(const std::string header, make_header(tensors, metadata));
  const std::filesystem::path temporary = path.string() + ".tmp." + std::to_string(::getpid());
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!fd.valid()) return io_error("create " + temporary.string(), errno);
  const auto write = [&]() -> Status {
    TRAINYARD_TRY(write_all(fd.get(), std::as_bytes(std::span(header.data(), header.size())),
                            temporary.string()));
    auto begin = static_cast<int64_t>(header.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t wanted = *byte_size(tensors[i].shape, size_of(tensors[i].dtype));
      int64_t given = 0;
      const auto write_at = [&](int64_t offset, std::span<const std::byte> bytes) -> Status {
        if (offset < 0 || offset + std::ssize(bytes) > wanted) {
          return Error{ErrorCode::kInternal, "tensor \"" + tensors[i].name + "\": bytes given to " +
                                                 std::to_string(offset + std::ssize(bytes)) +
                                                 " of " + std::to_string(wanted)};
        }
        given += std::ssize(bytes);
        if (::lseek(fd.get(), begin + offset, SEEK_SET) < 0) {
          return io_error("seek in " + temporary.string(), errno);
        }
        return write_all(fd.get(), bytes, temporary.string());
      };
      TRAINYARD_TRY(give(i, write_at));
      if (given != wanted) {
        return Error{ErrorCode::kInternal, "tensor \"" + tensors[i].name +
                                               "\": " + std::to_string(given) +
                                               " bytes given, wanted " + std::to_string(wanted)};
      }
      begin += wanted;
    }
    if (::fsync(fd.get()) != 0) return io_error("fsync " + temporary.string(), errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return io_error("rename to " + path.string(), errno);
    }
    return sync_directory(path.parent_path().empty() ? "." : path.parent_path());
  };
  const Status status = write();
  if (!status) ::unlink(temporary.c_str());
  return status;
}

}  // namespace trainyard::safetensors
