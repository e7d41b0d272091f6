#pragma once

namespace trainyard::control {

/// Beginning of a variable's name in a pod with an agent: what follows is the name that it has for
/// the ranks. For variables that are not for the agent itself.
inline constexpr char kEnvForRanks[] = "TRAINYARD_FOR_RANKS_";

}  // namespace trainyard::control
