#pragma once

#include <cstdint>
#include <string>

/// What a test says to the emulation and asks of it. Single-threaded: one launch runs at a time,
/// under one lock, whichever host thread asks.
namespace trainyard::simt {

struct EmulationOptions {
  /// Seed 0 runs threads and blocks in index order and each stream operation at once. Any other
  /// seed draws the order of threads, blocks and streams, and when background copies arrive.
  uint64_t seed = 0;
  /// Errors are written to stderr as well.
  bool print_errors = true;
  /// How many allocations succeed before one fails with cudaErrorMemoryAllocation; -1: none fails.
  int64_t fail_allocation = -1;
};
EmulationOptions& emulation_options();

/// The first error since the last reset, with block, thread and source line; empty without one.
const std::string& emulation_error();
/// Forgets the error and drops what the streams still hold, so that the next test starts clean.
void reset_emulation();
/// Number of device allocations not yet freed.
int64_t live_allocations();

/// Whether the program is linked with the race checker.
bool has_race_checker();

struct EmulationCounters {
  uint64_t launches = 0, blocks = 0, threads = 0;
};
const EmulationCounters& emulation_counters();

}  // namespace trainyard::simt
