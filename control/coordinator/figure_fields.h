#pragma once

#include <cstddef>

namespace trainyard::coordination {
class RankProgress;
}

namespace trainyard::control {

/// A figure of a message, by contract::Figure::slot; those of the first slots have fields with
/// names. One that an older agent does not send is 0.
void set_figure(coordination::RankProgress& progress, size_t slot, double value);
double figure_of(const coordination::RankProgress& progress, size_t slot);

}  // namespace trainyard::control
