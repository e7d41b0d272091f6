#include "control/goodput/ledger.h"

#include <algorithm>
#include <cmath>

namespace trainyard::control::goodput {
namespace {

milliseconds& part_of(api::GoodputStatus& goodput, Category category) {
  switch (category) {
    case Category::kProductive:
      return goodput.productive;
    case Category::kQueue:
      return goodput.badput.queue;
    case Category::kStartup:
      return goodput.badput.startup;
    case Category::kRendezvous:
      return goodput.badput.rendezvous;
    case Category::kRestore:
      return goodput.badput.restore;
    case Category::kCheckpoint:
      return goodput.badput.checkpoint;
    case Category::kRecompute:
      return goodput.badput.recompute;
    case Category::kStall:
      return goodput.badput.stall;
    case Category::kInfra:
      return goodput.badput.infra;
    case Category::kStopped:
      return goodput.stopped;
  }
  return goodput.badput.infra;
}

}  // namespace

milliseconds total(const api::Badput& badput) {
  return badput.queue + badput.startup + badput.rendezvous + badput.restore + badput.checkpoint +
         badput.recompute + badput.stall + badput.infra;
}

void Ledger::open(Time start) {
  if (!is_open()) goodput_.counted.time = std::chrono::floor<milliseconds>(start);
}

milliseconds Ledger::advance(Time until) {
  if (!is_open()) return milliseconds(0);
  const auto to = std::chrono::floor<milliseconds>(until);
  const auto from = std::chrono::floor<milliseconds>(*goodput_.counted.time);
  if (to <= from) return milliseconds(0);
  goodput_.counted.time = to;
  return to - from;
}

void Ledger::add(milliseconds amount, Category category) {
  part_of(goodput_, category) += amount;
  if (category != Category::kStopped) goodput_.wall += amount;
}

void Ledger::spend(Time until, Category category) {
  add(advance(until), category);
  update_ratio();
}

void Ledger::spend_training(const TrainedSpan& span) {
  const milliseconds trained = advance(span.until);
  const int64_t steps = std::max<int64_t>(0, span.to_step - span.from_step);
  const int64_t again = std::clamp<int64_t>(goodput_.counted.reached_step - span.from_step, 0,
                                            std::max<int64_t>(steps, 1));
  // Without a whole step the span is a part of one: of one done before, or of a new one.
  const milliseconds recomputed = trained * again / std::max<int64_t>(steps, 1);
  add(recomputed, Category::kRecompute);
  add(trained - recomputed, Category::kProductive);
  reach_step(span.to_step);
  set_step(span.to_step);
  update_ratio();
}

void Ledger::reach_step(int64_t step) {
  goodput_.counted.reached_step = std::max(goodput_.counted.reached_step, step);
}

void Ledger::update_ratio() {
  constexpr double kDigits = 1e4;
  if (goodput_.wall == milliseconds(0)) return;
  const double ratio =
      static_cast<double>(goodput_.productive.count()) / static_cast<double>(goodput_.wall.count());
  goodput_.ratio = std::round(ratio * kDigits) / kDigits;
}

}  // namespace trainyard::control::goodput
