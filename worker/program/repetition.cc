#include "worker/program/repetition.h"

#include <algorithm>
#include <tuple>

namespace trainyard::engine {

std::vector<Repetition> find_phases(const Schedule& schedule, int most) {
  std::vector<Repetition> phases;
  for (size_t begin = 0; begin < schedule.size();) {
    size_t length = 0;
    while (begin + length < schedule.size() && schedule[begin + length].micro_batch == 0)
      ++length;
    size_t end = begin + length;
    for (; length > 0 && end < schedule.size(); ++end) {
      const Pass& before = schedule[end - length];
      if (schedule[end] != Pass{before.kind, before.micro_batch + 1, before.stage}) break;
    }
    if (length == 0 || (end - begin) % length != 0) return {};
    // With several stages of a rank, a part waits for that of another rank before.
    if (schedule[begin].stage != schedule.front().stage) return {};
    const auto times = static_cast<int>((end - begin) / length);
    if (times <= most || (!phases.empty() && phases.front().times != times)) return {};
    phases.push_back({.begin = begin, .length = length, .times = times, .step = 1});
    begin = end;
  }
  return phases.size() > 1 ? phases : std::vector<Repetition>();
}

std::optional<Repetition> find_repetition(const Schedule& schedule, int micro_batches, int most) {
  const size_t middle = schedule.size() / 2;
  std::optional<Repetition> found;
  const auto runs = [&](const Pass& pass) { return pass.micro_batch < micro_batches; };
  for (size_t length = 1; length * static_cast<size_t>(most) < schedule.size(); ++length) {
    const int step = schedule[middle + length].micro_batch - schedule[middle].micro_batch;
    const auto repeats = [&](size_t i) {
      const Pass& now = schedule[i];
      const Pass& then = schedule[i + length];
      return then == Pass{now.kind, now.micro_batch + step, now.stage} && runs(then) == runs(now);
    };
    if (step < 1 || !repeats(middle)) continue;
    size_t begin = middle;
    size_t end = middle;
    while (begin > 0 && repeats(begin - 1))
      --begin;
    while (end + length < schedule.size() && repeats(end))
      ++end;
    while (begin < end && schedule[begin].kind != InstructionKind::kForward)
      ++begin;
    const auto times = static_cast<int>((end + length - begin) / length);
    if (times <= most) continue;
    if (!found) found = Repetition{begin, length, times, step};
    // Within a round of an interleaved schedule shorter ones repeat: another length has more.
    if (2 * length * static_cast<size_t>(times) > schedule.size())
      return Repetition{begin, length, times, step};
  }
  return found;
}

std::optional<Schedule> shortened(const Schedule& schedule, const Repetition& repetition,
                                  int rounds) {
  const auto place = [&](int round) {
    return schedule.begin() +
           static_cast<std::ptrdiff_t>(repetition.begin +
                                       static_cast<size_t>(round) * repetition.length);
  };
  Schedule few(schedule.begin(), place(rounds));
  for (auto pass = place(repetition.times); pass != schedule.end(); ++pass) {
    few.push_back(*pass);
    few.back().micro_batch -= (repetition.times - rounds) * repetition.step;
    if (few.back().micro_batch < 0) return std::nullopt;
  }
  Schedule sorted = few;
  std::sort(sorted.begin(), sorted.end(), [](const Pass& a, const Pass& b) {
    return std::tie(a.kind, a.micro_batch, a.stage) < std::tie(b.kind, b.micro_batch, b.stage);
  });
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return std::nullopt;
  return few;
}

}  // namespace trainyard::engine
