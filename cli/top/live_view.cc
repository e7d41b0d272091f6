#include "cli/top/live_view.h"

#include <algorithm>
#include <chrono>
#include <unistd.h>
#include <utility>

#include "cli/run/format.h"
#include "common/base/clock.h"

namespace trainyard::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{1000};

class LiveView final : public RunView {
 public:
  LiveView(std::unique_ptr<RunView> inner, std::filesystem::path run_dir)
      : inner_(std::move(inner)), run_dir_(std::move(run_dir)) {}

  void begin(const RunHeader& header) override {
    header_ = header;
    inner_->begin(header);
  }

  void update(const Snapshot& snapshot) override {
    inner_->update(snapshot);
    state_ = live_state_of(header_, snapshot);
    const MonoTime now = clock_.mono();
    if (now < next_) return;
    next_ = now + kInterval;
    write();
  }

  void notice(const Notice& notice) override { inner_->notice(notice); }

  void end(const Summary& summary) override {
    if (next_ == MonoTime{}) take_up_last(summary);
    // A finished run that was only looked at again keeps the state of its end.
    if (!state_.over) {
      state_.over = true;
      state_.activity = outcome_text(summary.outcome);
      state_.step = std::max(state_.step, summary.step);
      state_.total_steps = summary.total_steps;
      if (summary.checkpoint_step) state_.checkpoint_step = *summary.checkpoint_step;
      if (summary.final_loss) state_.loss = summary.final_loss;
      if (summary.validation_loss) state_.validation_loss = summary.validation_loss;
      state_.eta_s.reset();
      state_.wall_s = summary.wall_s;
      state_.restarts = summary.restarts;
      state_.lost_steps = summary.lost_steps;
      write();
    }
    inner_->end(summary);
  }

 private:
  /// Of a run that ended while nobody looked: what was shown last, to be brought to its end.
  void take_up_last(const Summary& summary) {
    const auto last = read_live(run_dir_);
    state_ = last ? *last : live_state_of(header_, {.generation = header_.generation});
    // One that is over may be of before the run was trained further.
    state_.over = state_.over && state_.step >= summary.step &&
                  state_.activity == outcome_text(summary.outcome);
  }

  void write() {
    state_.at = clock_.now();
    state_.pid = ::getpid();
    const Status written = write_live(run_dir_, state_);
    if (written || complained_) return;
    complained_ = true;
    inner_->notice({Notice::Kind::kWarning, "NoLiveState", written.error().message, {}});
  }

  std::unique_ptr<RunView> inner_;
  std::filesystem::path run_dir_;
  const SystemClock clock_;
  RunHeader header_;
  LiveState state_;
  MonoTime next_;
  bool complained_ = false;
};

}  // namespace

LiveState live_state_of(const RunHeader& header, const Snapshot& snapshot) {
  LiveState state;
  state.job_name = header.job_name;
  state.expected_ranks = header.ranks;
  state.activity = snapshot.activity;
  state.generation = snapshot.generation;
  state.layout = snapshot.layout;
  state.pipeline_stages = snapshot.pipeline_stages;
  state.step = snapshot.step;
  state.total_steps = snapshot.total_steps;
  static_cast<contract::KnownFigures&>(state) = snapshot;
  state.eta_s = snapshot.eta_s;
  state.checkpoint_step = snapshot.checkpoint_step;
  state.restarts = snapshot.restarts;
  state.ranks = snapshot.ranks;
  state.goodput = snapshot.goodput;
  state.wall_s = snapshot.wall_s;
  state.lost_steps = snapshot.lost_steps;
  state.slowest_rank = snapshot.slowest_rank;
  return state;
}

std::unique_ptr<RunView> make_live_view(std::unique_ptr<RunView> inner,
                                        const std::filesystem::path& run_dir) {
  return std::make_unique<LiveView>(std::move(inner), run_dir);
}

}  // namespace trainyard::cli
