#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/numeric/cuda_engine/call_faults.h"
#include "tests/numeric/cuda_engine/ranks.h"

/// Two ranks of which one has a call that fails or hangs, or enqueues what is never done.
namespace trainyard::engine::testing {

inline constexpr int kFaulty = 1;
/// How long a rank waits.
struct Patience {
  std::chrono::milliseconds gpu{60'000};
  std::chrono::milliseconds nccl{60'000};
  std::chrono::milliseconds host{60'000};  ///< for its peer

  Patience times(int factor) const { return {gpu * factor, nccl * factor, host * factor}; }
};

/// How a rank ended.
struct End {
  std::string error;  ///< empty: none
  std::string hash;
};

inline Layout faulty_layout() { return {"Zero3", 2, 2, data_parallel(3, 0)}; }
inline api::EngineSpec faulty_spec() {
  api::EngineSpec spec = spec_of(faulty_layout(), api::NumberFormat::kFP32);
  spec.batch.global_sequences = 4;
  return spec;
}

/// Trains on one rank's device; the hash of its state.
using TrainRank =
    std::function<Result<std::string>(Device&, comm::Communicator& world, const comm::Groups&)>;

/// Both ranks' ends. Nothing hangs after it.
inline std::vector<End> run_faulty(const Patience& patience, const TrainRank& train) {
  std::vector<End> ends(2);
  simt::emulation_options().devices = 2;
  comm::testing::run_world(
      comm::TransportKind::kLocal, 2,
      [&](comm::Communicator& world) {
        const auto host = comm::Groups::make(world, mesh_of(faulty_layout()), 1);
        ASSERT_TRUE(host) << host.error().message;
        const auto device = cuda_device(faulty_spec(), world.rank(), 0, true, patience.gpu);
        Result<std::string> hash =
            device ? train(**device, world, *host) : Result<std::string>(device.error());
        if (!hash) host->abort(hash.error());
        End& end = ends[static_cast<size_t>(world.rank())];
        if (hash) end.hash = *hash;
        if (!hash) end.error = hash.error().message;
        // The peer of a rank that hangs has come to its end.
        if (world.rank() != kFaulty && simt::call_faults().fault == simt::CallFault::kHang)
          simt::release_call_faults();
      },
      patience.host);
  simt::release_call_faults();
  simt::reset_emulation();
  return ends;
}

/// Of ends where the fault must have happened.
inline std::vector<std::string> errors_of(const std::vector<End>& ends) {
  if (!simt::call_faults().has_happened) return {"the run did not come to its fault"};
  std::vector<std::string> errors;
  errors.reserve(ends.size());
  for (const End& end : ends)
    errors.push_back(end.error);
  return errors;
}

}  // namespace trainyard::engine::testing
