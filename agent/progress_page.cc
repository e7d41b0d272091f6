#include "agent/progress_page.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "common/log/text.h"
#include "common/proto/coordination.pb.h"
#include "control/coordinator/figure_fields.h"

namespace trainyard::agent {
namespace {

/// Attempts at a page that is being written; a writer that runs is done in under a microsecond.
constexpr int kMaxReadings = 64;

/// The fields under `sequence`.
struct Group {
  int64_t step, total_steps, samples_consumed, tokens_consumed;
  std::array<double, contract::kFigureSlots> figures;
};

Group load_group(const contract::ProgressPage& page) {
  constexpr auto relaxed = std::memory_order_relaxed;
  Group group{.step = page.step.load(relaxed),
              .total_steps = page.total_steps.load(relaxed),
              .samples_consumed = page.samples_consumed.load(relaxed),
              .tokens_consumed = page.tokens_consumed.load(relaxed),
              .figures = {}};
  for (size_t slot = 0; slot < group.figures.size(); ++slot)
    group.figures[slot] = page.figure(slot).load(relaxed);
  return group;
}

void store_group(const Group& group, coordination::RankProgress& progress) {
  progress.set_step(group.step);
  progress.set_total_steps(group.total_steps);
  progress.set_samples_consumed(group.samples_consumed);
  progress.set_tokens_consumed(group.tokens_consumed);
  contract::visit_figures([&](const contract::Figure& figure) {
    control::set_figure(progress, figure.slot, group.figures[figure.slot]);
  });
}

void store_checkpoints(const contract::CheckpointFigures& figures,
                       coordination::CheckpointProgress& progress) {
  progress.set_commits(figures.commits);
  progress.set_failures(figures.failures);
  progress.set_failed_step(figures.failed_step);
  progress.set_bytes(figures.bytes);
  progress.set_bytes_total(figures.bytes_total);
  progress.set_committed_unix_seconds(figures.committed_unix_s);
  progress.set_commit_seconds(figures.commit_s);
  progress.set_write_seconds(figures.write_s);
  progress.set_write_cpu_seconds(figures.write_cpu_s);
  progress.set_stall_seconds(figures.stall_s);
  progress.set_stall_total_seconds(figures.stall_total_s);
  // The page belongs to the rank, which may be anybody's program: protobuf wants UTF-8.
  progress.set_failure(printable_text(figures.failure, contract::CheckpointPage::kMaxFailureBytes));
}

}  // namespace

Result<SharedProgressPage> SharedProgressPage::create() {
  UniqueFd fd(::memfd_create("trainyard-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return io_error("memfd_create of a progress page", errno);
  if (::ftruncate(fd.get(), contract::kProgressPageBytes) != 0) {
    return io_error("ftruncate of a progress page", errno);
  }
  // A rank that shrank its page would make the agent fault.
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return io_error("sealing a progress page", errno);
  }
  void* memory = ::mmap(nullptr, contract::kProgressPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                        fd.get(), 0);
  if (memory == MAP_FAILED) return io_error("mmap of a progress page", errno);
  return SharedProgressPage(std::move(fd), static_cast<contract::ProgressPage*>(memory));
}

SharedProgressPage::SharedProgressPage(UniqueFd fd, contract::ProgressPage* page)
    : fd_(std::move(fd)), page_(page) {}

SharedProgressPage::SharedProgressPage(SharedProgressPage&& other) noexcept
    : fd_(std::move(other.fd_)), page_(std::exchange(other.page_, nullptr)) {}

SharedProgressPage& SharedProgressPage::operator=(SharedProgressPage&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  return *this;
}

SharedProgressPage::~SharedProgressPage() {
  if (page_ != nullptr) ::munmap(page_, contract::kProgressPageBytes);
}

void read_progress(const contract::ProgressPage& page, coordination::RankProgress& progress) {
  if (page.magic.load(std::memory_order_acquire) != contract::kProgressMagic) {
    progress.set_checkpoint_step(-1);
    progress.mutable_checkpoints()->set_failed_step(-1);
    progress.set_restored_step(-1);
    progress.set_validation_loss(std::numeric_limits<double>::quiet_NaN());
    return;
  }
  for (int reading = 0; reading < kMaxReadings; ++reading) {
    const uint64_t before = page.sequence.load(std::memory_order_acquire);
    const Group group = load_group(page);
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t after = page.sequence.load(std::memory_order_relaxed);
    if (before != after || before % 2 != 0) continue;
    store_group(group, progress);
    break;
  }
  progress.set_phase(page.phase.load(std::memory_order_relaxed));
  progress.set_instruction_id(page.instruction_id.load(std::memory_order_relaxed));
  progress.set_checkpoint_step(page.checkpoint_step.load(std::memory_order_relaxed));
  progress.set_beats(page.heartbeat.load(std::memory_order_relaxed));
  progress.set_restored_step(page.restored_step.load(std::memory_order_relaxed));
  contract::CheckpointFigures checkpoints;
  if (contract::load(page.checkpoints, checkpoints)) {
    store_checkpoints(checkpoints, *progress.mutable_checkpoints());
  }
  progress.set_arrivals(page.position.arrivals.load(std::memory_order_relaxed));
  progress.set_work_seconds(page.position.work_seconds.load(std::memory_order_relaxed));
  progress.set_instruction(contract::instruction_text(page.position));
}

}  // namespace trainyard::agent
