#include "worker/rank/progress.h"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

namespace trainyard::engine {

using contract::ProgressPage;
constexpr auto kRelaxed = std::memory_order_relaxed;

namespace {

/// There is one writer: no locked instruction.
void add(std::atomic<int64_t>& counter, int64_t amount) {
  counter.store(counter.load(kRelaxed) + amount, kRelaxed);
}

/// Stores those of one source.
void store(const contract::Figures<double>& figures, contract::FigureSource source,
           ProgressPage& page) {
  contract::visit_figures(
      [&](const contract::Figure& figure, double value) {
        if (figure.source == source) page.figure(figure.slot).store(value, kRelaxed);
      },
      figures);
}

int64_t nanoseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace

Result<Progress> Progress::map(int fd) {
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* memory =
      ::mmap(nullptr, contract::kProgressPageBytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (memory == MAP_FAILED) return io_error("map the progress page", errno);
  auto* page = static_cast<ProgressPage*>(memory);
  contract::Figures<double> unknown;
  unknown.loss = unknown.validation_loss = std::numeric_limits<double>::quiet_NaN();
  store(unknown, contract::FigureSource::kStep, *page);
  store(unknown, contract::FigureSource::kEvaluation, *page);
  page->checkpoint_step.store(-1, kRelaxed);
  page->restored_step.store(-1, kRelaxed);
  contract::store({}, page->checkpoints);
  page->counters.version.store(contract::kRankCountersVersion, std::memory_order_release);
  page->magic.store(contract::kProgressMagic, std::memory_order_release);
  return Progress(page);
}

Progress::~Progress() {
  if (page_ != nullptr) ::munmap(page_, contract::kProgressPageBytes);
}

void Progress::set_phase(contract::Phase phase) {
  page_->phase.store(static_cast<uint32_t>(phase), kRelaxed);
  page_->heartbeat.fetch_add(1, std::memory_order_release);
  if (!faults_.empty()) faults_.at_phase(phase);
}

void Progress::set_total_steps(int64_t steps) { page_->total_steps.store(steps, kRelaxed); }

void Progress::instruction(int id) {
  page_->instruction_id.store(static_cast<uint32_t>(id), kRelaxed);
  page_->heartbeat.fetch_add(1, std::memory_order_release);
  if (!faults_.empty()) faults_.at_instruction(page_->step.load(kRelaxed), id);
}

void Progress::position(const contract::InstructionName& name) {
  contract::store(name, page_->position);
}

void Progress::level(int64_t level) {
  const std::lock_guard lock(behind_->mutex);
  level_ = level;
  waits_ = false;
  store_arrivals();
}

void Progress::waits(bool waits) {
  const std::lock_guard lock(behind_->mutex);
  waits_ = waits;
  store_arrivals();
}

void Progress::waits_for_device(int64_t place, bool waits) {
  const std::lock_guard lock(behind_->mutex);
  std::vector<int64_t>& places = behind_->places;
  if (waits) {
    places.push_back(place);
  } else {
    places.erase(std::find(places.begin(), places.end(), place));
  }
  store_arrivals();
}

/// Under the lock.
void Progress::store_arrivals() {
  int64_t arrivals = 2 * level_ + (waits_ ? 1 : 0);
  for (const int64_t place : behind_->places)
    arrivals = std::min(arrivals, 2 * place);
  page_->position.arrivals.store(arrivals, kRelaxed);
}

void Progress::work_seconds(double seconds) {
  page_->position.work_seconds.store(seconds, kRelaxed);
}

void Progress::step_done(const StepProgress& progress) {
  page_->sequence.fetch_add(1, std::memory_order_acq_rel);
  page_->step.store(progress.step, kRelaxed);
  page_->samples_consumed.store(progress.samples_consumed, kRelaxed);
  page_->tokens_consumed.store(progress.tokens_consumed, kRelaxed);
  store(progress.figures, contract::FigureSource::kStep, *page_);
  page_->sequence.fetch_add(1, std::memory_order_release);
}

void Progress::validation_loss(double loss) {
  contract::Figures<double> figures;
  figures.validation_loss = loss;
  store(figures, contract::FigureSource::kEvaluation, *page_);
}
void Progress::checkpoint_step(int64_t step) { page_->checkpoint_step.store(step, kRelaxed); }
void Progress::checkpoints(const contract::CheckpointFigures& figures) {
  contract::store(figures, page_->checkpoints);
}
void Progress::restored_step(int64_t step) {
  page_->step.store(step, kRelaxed);
  page_->restored_step.store(step, kRelaxed);
}

void Progress::count_step(Duration took, int64_t tokens, bool skipped) {
  contract::RankCounters& counters = page_->counters;
  contract::observe(counters.step, nanoseconds(took));
  add(counters.tokens_trained, tokens);
  if (skipped) add(counters.steps_skipped, 1);
}

void Progress::count_stages(const std::array<int64_t, contract::kStages>& split_ns) {
  for (size_t i = 0; i < split_ns.size(); ++i) {
    if (split_ns[i] > 0) contract::observe(page_->counters.stages[i], split_ns[i]);
  }
}

void Progress::set_collective(size_t kind, const contract::CollectiveReading& so_far) {
  contract::CollectiveCounters& counters = page_->counters.collectives[kind];
  counters.operations.store(so_far.operations, kRelaxed);
  counters.nanoseconds.store(so_far.nanoseconds, kRelaxed);
  counters.bytes_sent.store(so_far.bytes_sent, kRelaxed);
  counters.bytes_received.store(so_far.bytes_received, kRelaxed);
}

void Progress::set_memory(contract::MemoryPurpose purpose, int64_t bytes) {
  page_->counters.memory_bytes[static_cast<size_t>(purpose)].store(bytes, kRelaxed);
}

}  // namespace trainyard::engine
