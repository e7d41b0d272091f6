#include "worker/checkpoint/shard.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <map>
#include <thread>
#include <tuple>

#include "worker/checkpoint/file_hasher.h"
#include "worker/checkpoint/manifest_json.h"
#include "worker/safetensors/safetensors.h"

namespace trainyard::checkpoint {
namespace {

// Hashed, then copied while still in the cache.
constexpr size_t kPieceBytes = 256 << 10;
// Written in one call where nobody hashes in between.
constexpr size_t kWriteBytes = 4 << 20;
// The data begins on a block of the medium, so that memory that begins on a page can be written
// from where it is.
constexpr size_t kDataAlignment = 4096;
// From here on the second thread, some 50 us, is paid for by the hashing it takes over: SHA-256
// does about 2 GB/s where the processor has instructions for it, 0.5 GB/s elsewhere.
constexpr size_t kHashBesideBytes = 4 << 20;
// How far writing may run ahead of it: what is hashed after the last call would look like a disk
// that hangs, and to wait earlier takes no longer.
constexpr int64_t kHashLagBytes = 64 << 20;

double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using Parts = std::vector<std::span<const std::byte>>;

/// Hands the parts over piece by piece until one is refused.
template <class Take>
Status for_each_piece(const Parts& parts, size_t piece_bytes, const Take& take) {
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const auto piece = part.first(std::min(part.size(), piece_bytes));
      TRAINYARD_TRY(take(piece));
      part = part.subspan(piece.size());
    }
  }
  return {};
}

struct Content {
  ShardRecord record;
  double cpu_s = 0;
};

Result<Content> write_and_hash(OutputFile& file, const Parts& parts, int64_t chunk_bytes) {
  const double begin = thread_cpu_s();
  FileHasher hasher(chunk_bytes);
  TRAINYARD_TRY(for_each_piece(parts, kPieceBytes, [&](std::span<const std::byte> piece) {
    hasher.update(piece);
    return file.write(piece);
  }));
  TRAINYARD_TRY(file.sync());
  return Content{hasher.finish(), thread_cpu_s() - begin};
}

/// The same with the hashing on a thread beside: the disk waits for no processor and the other way
/// round.
Result<Content> write_beside_hashing(OutputFile& file, const Parts& parts, int64_t chunk_bytes) {
  const double begin = thread_cpu_s();
  Content content;
  Status hashed;
  std::atomic<int64_t> hashed_bytes = 0;
  std::jthread hashing([&](const std::stop_token& stop) {
    const double hashing_begin = thread_cpu_s();
    FileHasher hasher(chunk_bytes);
    hashed = for_each_piece(parts, kPieceBytes, [&](std::span<const std::byte> piece) -> Status {
      if (stop.stop_requested()) return Error{ErrorCode::kAborted, "the write has failed"};
      hasher.update(piece);
      hashed_bytes += static_cast<int64_t>(piece.size());
      hashed_bytes.notify_one();
      return {};
    });
    if (hashed) content.record = hasher.finish();
    content.cpu_s = thread_cpu_s() - hashing_begin;
  });
  int64_t written_bytes = 0;
  Status written = for_each_piece(parts, kWriteBytes, [&](std::span<const std::byte> piece) {
    written_bytes += static_cast<int64_t>(piece.size());
    for (int64_t done = hashed_bytes; written_bytes - done > kHashLagBytes; done = hashed_bytes)
      hashed_bytes.wait(done);
    return file.write(piece);
  });
  if (written) written = file.sync();
  if (!written) hashing.request_stop();
  hashing.join();  // its destructor would ask it to stop, however well the write went
  if (!written) return written.error();
  if (!hashed) return hashed.error();
  content.cpu_s += thread_cpu_s() - begin;
  return content;
}

/// Writes header and data to `path` and syncs it.
Result<Content> write_content(FileSystem& files, const std::filesystem::path& path,
                              std::string_view header, std::span<const TensorSlice> slices,
                              int64_t chunk_bytes) {
  Parts parts{std::as_bytes(std::span(header.data(), header.size()))};
  size_t bytes = header.size();
  for (const TensorSlice& slice : slices) {
    bytes += slice.data.size();
    std::span<const std::byte>& last = parts.back();
    const bool adjoins = parts.size() > 1 && last.data() + last.size() == slice.data.data();
    if (adjoins) {
      last = {last.data(), last.size() + slice.data.size()};
    } else {
      parts.push_back(slice.data);
    }
  }
  TRAINYARD_ASSIGN(const std::unique_ptr<OutputFile> file, files.create(path));
  return bytes < kHashBesideBytes ? write_and_hash(*file, parts, chunk_bytes)
                                  : write_beside_hashing(*file, parts, chunk_bytes);
}

std::vector<TensorRecord> records_of(std::span<const TensorSlice> slices, int rank,
                                     int64_t data_offset) {
  std::vector<TensorRecord> tensors;
  for (const TensorSlice& slice : slices) {
    if (tensors.empty() || tensors.back().name != slice.name || tensors.back().kind != slice.kind) {
      tensors.push_back({slice.name, slice.kind, slice.dtype, slice.global_shape, {}});
    }
    tensors.back().slices.push_back({rank, data_offset, slice.where});
    data_offset += static_cast<int64_t>(slice.data.size());
  }
  return tensors;
}

}  // namespace

std::string entry_name(const TensorSlice& slice) {
  std::string name = slice.name;
  if (slice.kind != TensorKind::kParameter) {
    name += ':';
    name += name_of(slice.kind);
  }
  if (slice.where.shape == slice.global_shape) return name;
  for (size_t axis = 0; axis < slice.where.offset.size(); ++axis) {
    name += axis == 0 ? '@' : ',';
    name += std::to_string(slice.where.offset[axis]);
  }
  return name;
}

Status check_slice(const TensorSlice& slice) {
  const auto fail = [&](const std::string& why) {
    return Error{ErrorCode::kInternal, "slice " + to_string(slice.where) + " of " + slice.name +
                                           " (" + std::string(name_of(slice.kind)) + "): " + why};
  };
  if (!is_tensor_name(slice.name)) return fail("the name must be of [A-Za-z0-9_.-]");
  if (slice.global_shape.size() > kMaxAxes) return fail("more than 8 axes");
  if (!contains(slice.global_shape, slice.where)) return fail("lies outside the tensor");
  const std::optional<int64_t> volume = checked_volume(slice.where.shape);
  if (!volume || slice.data.size() != static_cast<size_t>(*volume * size_of(slice.dtype))) {
    return fail("has " + std::to_string(slice.data.size()) + " bytes of data");
  }
  return {};
}

Result<ShardReport> write_shard(FileSystem& files, const std::filesystem::path& directory, int rank,
                                int size, std::vector<TensorSlice> slices, int64_t chunk_bytes) {
  std::sort(slices.begin(), slices.end(), [](const TensorSlice& a, const TensorSlice& b) {
    return std::tie(a.name, a.kind, a.where.offset) < std::tie(b.name, b.kind, b.where.offset);
  });
  std::vector<safetensors::TensorInfo> infos;
  for (const TensorSlice& slice : slices) {
    TRAINYARD_TRY(check_slice(slice));
    infos.push_back({entry_name(slice), slice.dtype, slice.where.shape});
  }
  TRAINYARD_ASSIGN(
      const std::string header,
      safetensors::make_header(infos, {{"format", "trainyard-checkpoint"}}, kDataAlignment));

  const std::filesystem::path path = directory / shard_file_name(rank, size);
  const std::filesystem::path temporary = path.string() + ".tmp";
  TRAINYARD_TRY(files.remove_file(temporary));
  Result<Content> written = write_content(files, temporary, header, slices, chunk_bytes);
  Status status = written ? files.rename(temporary, path) : Status(written.error());
  if (status) status = files.sync_directory(directory);
  if (!status) {
    (void)files.remove_file(temporary);  // best effort: the space may be what is short
    return status.error();
  }
  return ShardReport{std::move(written->record),
                     records_of(slices, rank, static_cast<int64_t>(header.size())), written->cpu_s};
}

std::string encode(const ShardReport& report, int rank, int size) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const TensorRecord& tensor : report.tensors)
    tensors.push_back(tensor_object(tensor));
  const nlohmann::ordered_json json = {
      {"shard", shard_object(report.shard, shard_file_name(rank, size))},
      {"tensors", std::move(tensors)}};
  return json.dump();
}

Result<ShardReport> decode_shard_report(std::string_view text, int rank, int size,
                                        int64_t chunk_bytes) {
  const Json json = parse_bounded_json<Json>(text, kReportDepthMax).value_or(Json());
  if (!json.is_object()) return field_error("shard report", "not a JSON object");
  ShardReport report;
  TRAINYARD_ASSIGN(const Json* shard, member_of(json, "shard", ""));
  TRAINYARD_ASSIGN(report.shard, decode_shard(*shard, static_cast<size_t>(rank),
                                              static_cast<size_t>(size), chunk_bytes));
  TRAINYARD_ASSIGN(const Json* tensors, array_member(json, "tensors", "", kMaxTensors));
  for (size_t i = 0; i < tensors->size(); ++i) {
    TRAINYARD_ASSIGN(TensorRecord tensor, decode_tensor((*tensors)[i], i));
    report.tensors.push_back(std::move(tensor));
  }
  return report;
}

Status merge_reports(std::vector<ShardReport> reports, Manifest* manifest) {
  std::map<std::pair<std::string, TensorKind>, TensorRecord> merged;
  for (ShardReport& report : reports) {
    manifest->shards.push_back(std::move(report.shard));
    for (TensorRecord& tensor : report.tensors) {
      const auto [found, added] = merged.try_emplace({tensor.name, tensor.kind}, tensor);
      if (added) continue;
      TensorRecord& record = found->second;
      if (record.dtype != tensor.dtype || record.shape != tensor.shape) {
        return Error{ErrorCode::kInternal,
                     "ranks contradict each other about type or shape of tensor " + tensor.name};
      }
      record.slices.insert(record.slices.end(), tensor.slices.begin(), tensor.slices.end());
    }
  }
  for (auto& [key, tensor] : merged)
    manifest->tensors.push_back(std::move(tensor));
  if (const Status valid = validate(*manifest); !valid) {
    return Error{ErrorCode::kInternal,
                 "the ranks' slices do not make up a checkpoint: " + valid.error().message};
  }
  return {};
}

}  // namespace trainyard::checkpoint
