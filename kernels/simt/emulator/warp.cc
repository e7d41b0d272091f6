// What the lanes of a warp do together, and background copies.

#include <algorithm>

#include "kernels/simt/emulator/state.h"

namespace trainyard::simt::detail {
namespace {

constexpr const char* kSyncWarp = "__syncwarp";

void complete(uint32_t warp_index, Meeting& meeting) {
  Warp& warp = device.warps[warp_index];
  warp.open.erase(std::find(warp.open.begin(), warp.open.end(), &meeting));
  // Of the warp operations only __syncwarp orders memory.
  if (observer != nullptr && meeting.kind == kSyncWarp) {
    observer->warp_synced(warp_index, meeting.present);
  }
  for (uint32_t i = 0; i < 32; ++i) {
    if ((meeting.present >> i & 1U) == 0) continue;
    Fiber& fiber = *device.fibers[warp_index * 32 + i];
    if (&fiber != device.current) wake(fiber);
  }
}

/// Most texts are the same literal.
bool is_same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

/// The warp's unfinished operation that this lane belongs to, or a new one.
Meeting& find_or_open(Warp& warp, const char* kind, Site site, uint32_t mask) {
  for (Meeting* const open : warp.open) {
    if (open->site.line == site.line && open->mask == mask && (open->present >> lane() & 1U) == 0 &&
        is_same(open->kind, kind) && is_same(open->site.file, site.file)) {
      return *open;
    }
  }
  if (device.free_meetings.empty()) {
    device.meetings.push_back(std::make_unique<Meeting>());
    device.free_meetings.push_back(device.meetings.back().get());
  }
  Meeting& meeting = *device.free_meetings.back();
  device.free_meetings.pop_back();
  meeting.kind = kind;
  meeting.site = site;
  meeting.mask = mask;
  meeting.present = meeting.left = 0;
  warp.open.push_back(&meeting);
  return meeting;
}

/// A lane brings four words of A (16x16, row-major), two of B (16x8, column-major), four of C.
void multiply(Meeting& meeting) {
  const auto element = [&](uint32_t lane, uint32_t word, uint32_t part) {
    uint16_t bits;
    std::memcpy(&bits, &meeting.slots[lane][4 * word + 2 * part], 2);
    return static_cast<double>(to_float(BFloat16{bits}));
  };
  double a[16][16];
  double b[8][16];
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t k = 0; k < 16; ++k)
      a[i][k] = element(i % 8 * 4 + k % 8 / 2, i / 8 + k / 8 * 2, k % 2);
  }
  for (uint32_t j = 0; j < 8; ++j) {
    for (uint32_t k = 0; k < 16; ++k)
      b[j][k] = element(j * 4 + k % 8 / 2, 4 + k / 8, k % 2);
  }
  for (uint32_t i = 0; i < 16; ++i) {
    for (uint32_t j = 0; j < 8; ++j) {
      float c;
      std::memcpy(&c, &meeting.slots[i % 8 * 4 + j / 2][24 + 4 * (i / 8 * 2 + j % 2)], 4);
      double sum = static_cast<double>(c);
      for (uint32_t k = 0; k < 16; ++k)
        sum += a[i][k] * b[j][k];
      meeting.product[i][j] = static_cast<float>(sum);
    }
  }
}

}  // namespace

void complete_meetings_without(uint32_t warp_index) {
  Warp& warp = device.warps[warp_index];
  for (size_t i = warp.open.size(); i-- > 0;) {
    Meeting& meeting = *warp.open[i];
    if ((meeting.mask & warp.alive) == meeting.present) complete(warp_index, meeting);
  }
}

Meeting& meet(const char* kind, Site site, uint32_t mask, const void* mine, size_t bytes) {
  const Outside outside;
  if ((mask >> lane() & 1U) == 0) fail_at(site, kind, "by a lane that its mask leaves out");
  const uint32_t warp_index = device.current->id / 32;
  Warp& warp = device.warps[warp_index];
  Meeting& meeting = find_or_open(warp, kind, site, mask);
  std::memcpy(meeting.slots[lane()], mine, bytes);
  meeting.present |= 1U << lane();
  if ((mask & warp.alive) == meeting.present) {
    complete(warp_index, meeting);
    give_way();
  } else {
    wait_here(kind, site);
  }
  return meeting;
}
void leave(Meeting& meeting) {
  meeting.left |= 1U << lane();
  if (meeting.left == meeting.present) device.free_meetings.push_back(&meeting);
}
void sync_warp(uint32_t mask, Site site) {
  const unsigned nothing = 0;
  leave(meet(kSyncWarp, site, mask, &nothing, sizeof nothing));
}

void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site) {
  const Outside outside;
  struct {
    uint32_t a[4], b[2];
    float c[4];
  } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}, {d[0], d[1], d[2], d[3]}};
  Meeting& meeting = meet("mma", site, ~0U, &mine, sizeof mine);
  if (meeting.present != ~0U) fail_at(site, "mma", "lacks a lane");
  if (meeting.left == 0) multiply(meeting);
  for (unsigned i = 0; i < 4; ++i)
    d[i] = meeting.product[lane() / 4 + i / 2 * 8][lane() % 4 * 2 + i % 2];
  leave(meeting);
}

void load_matrices(uint32_t (&r)[4], const void* row, bool transpose, Site site) {
  const Outside outside;
  const char* const kind = transpose ? "ldmatrix.trans" : "ldmatrix";
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) fail_at(site, kind, "of a misaligned row");
  touch(row, 16, Access::kRead, __builtin_return_address(0));
  uint4 mine;
  std::memcpy(&mine, row, sizeof mine);
  Meeting& meeting = meet(kind, site, ~0U, &mine, sizeof mine);
  if (meeting.present != ~0U) fail_at(site, kind, "lacks a lane");
  const unsigned i = lane() / 4;
  const unsigned j = lane() % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    uint16_t pair[2];
    for (unsigned part = 0; part < 2; ++part) {
      const unsigned source = transpose ? j + part : i;
      const unsigned column = transpose ? i : j + part;
      std::memcpy(&pair[part], &meeting.slots[matrix * 8 + source][size_t{2} * column], 2);
    }
    r[matrix] = pair[0] | static_cast<uint32_t>(pair[1]) << 16U;
  }
  leave(meeting);
}

void carry_out(const Copy& copy) {
  if (observer != nullptr) observer->copy_is_pending(copy.to, 16, false);
  touch(copy.from, copy.read, Access::kRead, copy.pc);
  std::memcpy(copy.to, copy.from, copy.read);
  std::memset(static_cast<std::byte*>(copy.to) + copy.read, 0, 16 - copy.read);
  touch(copy.to, 16, Access::kWrite, copy.pc);
}

void copy_later(void* shared, const void* global, uint32_t read, Site site) {
  const Outside outside;
  if (reinterpret_cast<uintptr_t>(shared) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(global) % 16 != 0 || read > 16) {
    fail_at(site, "cp.async", "of a misaligned address, or of more than 16 bytes");
  }
  const Copy copy{shared, global, read, device.current->copy_group, __builtin_return_address(0)};
  touch(shared, 16, Access::kWrite, copy.pc);
  if (observer != nullptr) observer->copy_is_pending(shared, 16, true);
  // It may arrive at once, or not before it is waited for.
  if (is_random() && draw(2) == 0) {
    std::memcpy(shared, global, read);
    std::memset(static_cast<std::byte*>(shared) + read, 0, 16 - read);
  } else {
    if (read > 0) (void)static_cast<const volatile unsigned char*>(global)[read - 1];
    std::memset(shared, kPoison, 16);
  }
  device.current->copies.push_back(copy);
}
void commit_copies() { ++device.current->copy_group; }
void wait_for_copies(uint32_t pending) {
  const Outside outside;
  Fiber& self = *device.current;
  size_t done = 0;
  while (done < self.copies.size() && self.copies[done].group + pending < self.copy_group)
    carry_out(self.copies[done++]);
  self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<ptrdiff_t>(done));
}

}  // namespace trainyard::simt::detail
