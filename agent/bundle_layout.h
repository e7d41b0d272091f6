#pragma once

/// What the agent brings along where it is put into somebody else's image (agent/bundle.h), and how
/// it is started there.
namespace trainyard::agent {

// What install_bundle puts into its folder.
inline constexpr char kBundleStarter[] = "start";
inline constexpr char kBundleLoader[] = "loader";
inline constexpr char kBundleLibraries[] = "lib";
inline constexpr char kBundleProgram[] = "trainyard-agent";

/// Beginning of a variable's name in the agent's environment: what follows is the name that it has
/// for the ranks. For variables that are not for the agent itself.
inline constexpr char kEnvForRanks[] = "TRAINYARD_FOR_RANKS_";

}  // namespace trainyard::agent
