#include "worker/checkpoint/memory_slots.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/check.h"
#include "common/hash/hash.h"

namespace trainyard::checkpoint {
namespace {

std::vector<Hash128> chunks_of(std::span<const std::byte> data) {
  std::vector<Hash128> chunks;
  while (!data.empty()) {
    const auto chunk = data.first(std::min(data.size(), static_cast<size_t>(kMaxChunkBytes)));
    chunks.push_back(xxh3_128(chunk));
    data = data.subspan(chunk.size());
  }
  return chunks;
}

}  // namespace

SlotShape shape_of(const std::vector<StatePart>& parts, const std::string& owner) {
  SlotShape shape;
  std::string text = owner;
  for (const StatePart& part : parts) {
    shape.data_bytes += part.where.elements() * static_cast<int64_t>(sizeof(float));
    text += "\n" + part.name + ":" + std::string(name_of(part.kind)) + to_string(part.where);
    for (const int64_t size : part.global_shape)
      text += " " + std::to_string(size);
  }
  shape.layout = xxh3_128(std::as_bytes(std::span(text)));
  return shape;
}

class MemorySlots::Mapping {
 public:
  Mapping(std::byte* begin, size_t bytes) : begin_(begin), bytes_(bytes) {}
  ~Mapping() { ::munmap(begin_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* at(int64_t offset) const { return begin_ + offset; }

 private:
  std::byte* begin_;
  size_t bytes_;
};

/// A slot that has been verified.
class MemorySlots::State final : public StateStore {
 public:
  State(const MemorySlots& slots, int slot, Manifest manifest)
      : slots_(slots), slot_(slot), manifest_(std::move(manifest)) {}

  std::string name() const override {
    return "memory of " + slots_.owner_ + ", " + directory_name(manifest_.id());
  }
  std::string place() const override { return name(); }
  const Manifest& manifest() const override { return manifest_; }

  Status read(std::string_view name, TensorKind kind, const Rectangle& where,
              std::span<float> out) override {
    const auto fail = [&](ErrorCode code, const std::string& why) {
      return Error{code, this->name() + ": tensor " + std::string(name) + " (" +
                             std::string(name_of(kind)) + "): " + why};
    };
    const auto found = slots_.by_name_.find({std::string(name), kind});
    if (found == slots_.by_name_.end()) return fail(ErrorCode::kNotFound, "not stored");
    if (where.elements() != std::ssize(out)) {
      return fail(ErrorCode::kInvalidData, "asked for another size");
    }
    int64_t read = 0;
    for (const size_t part : found->second) {
      const std::byte* const source = slots_.own_.data(slot_).data() + slots_.offsets_[part];
      TRAINYARD_TRY(for_each_run(slots_.parts_[part].where, where, [&](const Run& run) -> Status {
        std::memcpy(out.data() + run.destination,
                    source + run.source * static_cast<int64_t>(sizeof(float)),
                    static_cast<size_t>(run.count) * sizeof(float));
        read += run.count;
        return {};
      }));
    }
    if (read != std::ssize(out)) {
      return fail(ErrorCode::kInvalidData, "rectangle " + to_string(where) + " is not this rank's");
    }
    return {};
  }

 private:
  const MemorySlots& slots_;
  const int slot_;
  const Manifest manifest_;
};

int64_t MemorySlots::file_bytes(int64_t data_bytes, std::optional<int64_t> ward_bytes) {
  return SlotRegion::bytes(kSlots, data_bytes) +
         (ward_bytes ? SlotRegion::bytes(kWardSlots, *ward_bytes) : 0);
}

Result<std::unique_ptr<MemorySlots>> MemorySlots::map(int fd, std::vector<StatePart> parts,
                                                      std::string owner,
                                                      const std::optional<SlotShape>& ward) {
  const SlotShape own = shape_of(parts, owner);
  const int64_t bytes =
      file_bytes(own.data_bytes, ward ? std::optional(ward->data_bytes) : std::nullopt);
  const off_t found = ::lseek(fd, 0, SEEK_END);
  if (found < 0) return io_error("lseek in the memory file of states", errno);
  const bool other_size = found != bytes;
  // The pages of what is thrown away go back to the kernel.
  if (other_size && (::ftruncate(fd, 0) != 0 || ::ftruncate(fd, bytes) != 0)) {
    return io_error("ftruncate of the memory file of states", errno);
  }
  void* const memory =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return io_error("mmap of the memory file of states", errno);
  auto mapping =
      std::make_shared<Mapping>(static_cast<std::byte*>(memory), static_cast<size_t>(bytes));
  const SlotRegion own_region(mapping->at(0), kSlots, own.data_bytes, own.layout);
  own_region.adopt();
  std::optional<SlotRegion> ward_region;
  if (ward) {
    ward_region.emplace(mapping->at(SlotRegion::bytes(kSlots, own.data_bytes)), kWardSlots,
                        ward->data_bytes, ward->layout);
    ward_region->adopt();
  }
  return std::unique_ptr<MemorySlots>(new MemorySlots(std::move(mapping), own_region, ward_region,
                                                      std::move(parts), std::move(owner)));
}

MemorySlots::MemorySlots(std::shared_ptr<Mapping> mapping, SlotRegion own,
                         std::optional<SlotRegion> ward, std::vector<StatePart> parts,
                         std::string owner)
    : mapping_(std::move(mapping)),
      own_(own),
      ward_(ward),
      parts_(std::move(parts)),
      owner_(std::move(owner)) {
  int64_t offset = 0;
  for (size_t i = 0; i < parts_.size(); ++i) {
    offsets_.push_back(offset);
    offset += parts_[i].where.elements() * static_cast<int64_t>(sizeof(float));
    by_name_[{parts_[i].name, parts_[i].kind}].push_back(i);
  }
  for (auto& in_use : in_use_)
    in_use = std::make_shared<int>();
}

bool MemorySlots::may_overwrite(int slot) const {
  return slot != lent_ && slot != kept_ && in_use_[static_cast<size_t>(slot)].use_count() == 1;
}

Result<std::span<std::byte>> MemorySlots::begin() {
  std::optional<int> chosen;
  int64_t chosen_step = 0;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slot == newest_ || !may_overwrite(slot)) continue;
    // Before a state has been chosen to go on from any may be wanted: the oldest one goes.
    const std::optional<Manifest> there = newest_ ? std::nullopt : own_.manifest(slot);
    const int64_t step = there ? there->step : -1;
    if (chosen && chosen_step <= step) continue;
    chosen = slot;
    chosen_step = step;
  }
  // One that no other rank is sure to have may go where two others stay for the sake of copies.
  if (!chosen && ward_ && newest_ && may_overwrite(*newest_)) {
    chosen = std::exchange(newest_, std::nullopt);
  }
  if (!chosen) {
    return Error{ErrorCode::kUnavailable,
                 "state in memory: the disk still reads the previous states; it hangs"};
  }
  own_.empty(*chosen);
  if (verified_ == chosen) verified_.reset();
  begun_ = chosen;
  return own_.data(*chosen);
}

Status MemorySlots::complete(Manifest manifest) {
  TRAINYARD_CHECK(begun_.has_value());
  manifest.chunk_bytes = kMaxChunkBytes;
  manifest.shards = {{.bytes = own_.data_bytes(), .chunks = chunks_of(own_.data(*begun_))}};
  manifest.tensors.clear();
  TRAINYARD_ASSIGN(const std::string text, encode(manifest));
  TRAINYARD_TRY(own_.complete(*begun_, text));
  newest_ = std::exchange(begun_, std::nullopt);
  return {};
}

Status MemorySlots::complete_with(const CheckpointId& id, std::string_view description) {
  TRAINYARD_CHECK(begun_.has_value());
  const int slot = *std::exchange(begun_, std::nullopt);
  const std::optional<int> damaged = own_.find(id);
  TRAINYARD_TRY(own_.complete(slot, description));
  const std::optional<Manifest> found = own_.manifest(slot);
  if (found && found->id() == id) {
    if (damaged) own_.empty(*damaged);
    return {};
  }
  own_.empty(slot);
  return Error{ErrorCode::kInvalidData,
               "memory of " + owner_ + ": the copy received is not of " + directory_name(id)};
}

std::span<const std::byte> MemorySlots::newest() const {
  TRAINYARD_CHECK(newest_.has_value());
  return data(*newest_);
}

std::shared_ptr<const void> MemorySlots::hold() const {
  TRAINYARD_CHECK(newest_.has_value());
  return std::make_shared<std::pair<std::shared_ptr<Mapping>, std::shared_ptr<int>>>(
      mapping_, in_use_[static_cast<size_t>(*newest_)]);
}

bool MemorySlots::held() const {
  return std::any_of(in_use_.begin(), in_use_.end(),
                     [](const auto& in_use) { return in_use.use_count() > 1; });
}

Result<std::unique_ptr<StateStore>> MemorySlots::open(const CheckpointId& id) {
  const std::optional<int> slot = own_.find(id);
  if (!slot) {
    return Error{ErrorCode::kNotFound, "memory of " + owner_ + ": no state " + directory_name(id)};
  }
  auto state = std::make_unique<State>(*this, *slot, *own_.manifest(*slot));
  if (verified_ != slot && chunks_of(data(*slot)) != state->manifest().shards.front().chunks) {
    return Error{ErrorCode::kInvalidData,
                 state->name() + ": the data are not those that were hashed"};
  }
  verified_ = slot;
  newest_ = slot;
  if (ward_) {
    kept_ = slot;
    ward_kept_ = ward_->find(id);
  }
  return std::unique_ptr<StateStore>(std::move(state));
}

PackedState MemorySlots::lend() {
  TRAINYARD_CHECK(newest_.has_value());
  lent_ = newest_;
  return {own_.description(*lent_), own_.data(*lent_)};
}

void MemorySlots::settle(bool everywhere) {
  if (everywhere) {
    kept_ = lent_;
    ward_kept_ = ward_newest_;
  }
  lent_.reset();
}

void MemorySlots::keep_copied(const CheckpointId& id) {
  TRAINYARD_CHECK(ward_.has_value());
  if (const std::optional<int> slot = own_.find(id)) kept_ = slot;
  if (const std::optional<int> slot = ward_->find(id)) ward_kept_ = slot;
}

void MemorySlots::forget_copies() {
  lent_.reset();
  kept_.reset();
}

std::vector<MemoryOffer> MemorySlots::ward_offers() const {
  return ward_ ? ward_->offers() : std::vector<MemoryOffer>();
}

std::optional<PackedState> MemorySlots::ward_state(const CheckpointId& id) const {
  const std::optional<int> slot = ward_ ? ward_->find(id) : std::nullopt;
  if (!slot) return std::nullopt;
  return PackedState{ward_->description(*slot), ward_->data(*slot)};
}

std::span<std::byte> MemorySlots::begin_ward() {
  TRAINYARD_CHECK(ward_.has_value());
  ward_begun_ = ward_kept_ == 0 ? 1 : 0;
  ward_->empty(*ward_begun_);
  return ward_->data(*ward_begun_);
}

Status MemorySlots::complete_ward(std::string_view description, std::string_view expected) {
  TRAINYARD_CHECK(ward_begun_.has_value());
  const int slot = *std::exchange(ward_begun_, std::nullopt);
  const auto copy = decode_manifest(description);
  const auto own = decode_manifest(expected);
  const bool of_round = copy && own && copy->job_uid == own->job_uid && copy->id() == own->id();
  const bool whole = of_round && copy->shards.size() == 1 &&
                     copy->shards.front().chunks == chunks_of(ward_->data(slot));
  if (!whole) {
    const std::string name = copy ? directory_name(copy->id()) : "a state";
    return Error{ErrorCode::kInvalidData,
                 "memory of " + owner_ + ": the copy of " + name + " that the previous node sent " +
                     (of_round ? "is not what was hashed there" : "is not of this round")};
  }
  TRAINYARD_TRY(ward_->complete(slot, description));
  ward_newest_ = slot;
  return {};
}

}  // namespace trainyard::checkpoint
