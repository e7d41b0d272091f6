#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "worker/program/schedule.h"

namespace trainyard::engine {

/// The rounds of a schedule that are alike: from place `begin` on, `times` rounds of `length`
/// passes, each the one before with `step` added to its micro-batches. A round begins with an F.
struct Repetition {
  size_t begin = 0;
  size_t length = 0;
  int times = 0;
  int step = 0;
};

/// Where all micro-batches, more than `most`, go through some passes of a stage before the first
/// goes through others, as in GPipe: the rounds of each such part, of one micro-batch each. Empty:
/// it is not so.
std::vector<Repetition> find_phases(const Schedule& schedule, int most);

/// The rounds around the middle of a schedule, if there are more than `most`. A round in which a
/// rank that has `micro_batches` runs a pass is not like one in which it does not.
std::optional<Repetition> find_repetition(const Schedule& schedule, int micro_batches, int most);

/// The schedule with `rounds` of its rounds; later micro-batches move up. Nothing, where that is
/// not a schedule: a pass behind the rounds belongs to a micro-batch before them.
std::optional<Schedule> shortened(const Schedule& schedule, const Repetition& repetition,
                                  int rounds);

}  // namespace trainyard::engine
