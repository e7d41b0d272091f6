#include "common/checkpoint_figures.h"

#include <algorithm>
#include <cstring>

namespace trainyard::contract {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
/// Attempts at a page that is being written; a writer that runs is done in under a microsecond.
constexpr int kMaxReadings = 64;

using Words = std::array<uint64_t, CheckpointPage::kMaxFailureBytes / sizeof(uint64_t)>;

/// The beginning of `text`, ended before a UTF-8 sequence that would be cut.
std::string_view fitting(std::string_view text) {
  if (text.size() <= CheckpointPage::kMaxFailureBytes) return text;
  size_t size = CheckpointPage::kMaxFailureBytes;
  while (size > 0 && (static_cast<uint8_t>(text[size]) & 0xc0U) == 0x80U)
    --size;
  return text.substr(0, size);
}

CheckpointFigures read(const CheckpointPage& page) {
  CheckpointFigures figures{.commits = page.commits.load(kRelaxed),
                            .failures = page.failures.load(kRelaxed),
                            .failed_step = page.failed_step.load(kRelaxed),
                            .bytes = page.bytes.load(kRelaxed),
                            .bytes_total = page.bytes_total.load(kRelaxed),
                            .committed_unix_s = page.committed_unix_s.load(kRelaxed),
                            .commit_s = page.commit_s.load(kRelaxed),
                            .write_s = page.write_s.load(kRelaxed),
                            .write_cpu_s = page.write_cpu_s.load(kRelaxed),
                            .stall_s = page.stall_s.load(kRelaxed),
                            .stall_total_s = page.stall_total_s.load(kRelaxed)};
  Words words;
  for (size_t i = 0; i < words.size(); ++i)
    words[i] = page.failure[i].load(kRelaxed);
  std::array<char, CheckpointPage::kMaxFailureBytes> text;
  std::memcpy(text.data(), words.data(), text.size());
  figures.failure.assign(text.begin(), std::find(text.begin(), text.end(), '\0'));
  return figures;
}

}  // namespace

void store(const CheckpointFigures& figures, CheckpointPage& page) {
  page.sequence.fetch_add(1, std::memory_order_acq_rel);
  page.commits.store(figures.commits, kRelaxed);
  page.failures.store(figures.failures, kRelaxed);
  page.failed_step.store(figures.failed_step, kRelaxed);
  page.bytes.store(figures.bytes, kRelaxed);
  page.bytes_total.store(figures.bytes_total, kRelaxed);
  page.committed_unix_s.store(figures.committed_unix_s, kRelaxed);
  page.commit_s.store(figures.commit_s, kRelaxed);
  page.write_s.store(figures.write_s, kRelaxed);
  page.write_cpu_s.store(figures.write_cpu_s, kRelaxed);
  page.stall_s.store(figures.stall_s, kRelaxed);
  page.stall_total_s.store(figures.stall_total_s, kRelaxed);
  Words words{};
  const std::string_view text = fitting(figures.failure);
  std::memcpy(words.data(), text.data(), text.size());
  for (size_t i = 0; i < words.size(); ++i)
    page.failure[i].store(words[i], kRelaxed);
  page.sequence.fetch_add(1, std::memory_order_release);
}

bool load(const CheckpointPage& page, CheckpointFigures& figures) {
  for (int reading = 0; reading < kMaxReadings; ++reading) {
    const uint64_t before = page.sequence.load(std::memory_order_acquire);
    if (before % 2 != 0) continue;
    CheckpointFigures found = read(page);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.sequence.load(kRelaxed) != before) continue;
    figures = std::move(found);
    return true;
  }
  return false;
}

}  // namespace trainyard::contract
