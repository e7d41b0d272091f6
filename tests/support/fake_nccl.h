#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "worker/comm/nccl_api.h"

/// NCCL on the CPU, over the emulation of CUDA, among the threads of one process: operations run on
/// their streams, wait there for the peers' and are as strict as the library about the order of
/// calls, communicators that are not ready, and buffers that are written to too early. Its calls
/// stand in simt::call_faults(), as ones of the GPU of the rank's number, and get the faults there.
namespace trainyard::testing_support {

/// What goes wrong at a call.
enum class NcclFault : uint8_t {
  kNone,
  kError,       ///< the call answers with an error and does nothing
  kHang,        ///< the call returns once faults are released, with an error
  kNeverReady,  ///< what the call began is in progress for ever
  kNeverDone,   ///< the operation is never done on the GPU
  kAsyncError,  ///< the communicator has an error from then on
  kLateError,   ///< the same once the operation runs, which is never done
};

struct FakeNccl {
  int version = 22703;
  /// The fault at the `fault_at`-th call (from 0) of the function of this name by `fault_rank`, a
  /// rank of the world that begins with use_as_rank().
  std::string fault_function;
  NcclFault fault = NcclFault::kNone;
  int fault_rank = 0;
  int fault_at = 0;
  /// A function whose every call by that rank answers with an error, too.
  std::string first_fails;
  /// How many questions for the state of a communicator are answered with ncclInProgress.
  int polls = 2;

  // What was seen.
  std::map<std::string, int> calls;  ///< of the rank with the fault, by function
  int live_comms = 0;                ///< neither destroyed nor aborted
  int finalized = 0, aborted = 0;
  std::string complaint;  ///< the first rule that a call broke
};
/// Settings and sightings of the one fake of a program, set to defaults by the caller.
FakeNccl& fake_nccl();
/// Of a rank: what it is called by has that rank.
comm::nccl::Api fake_nccl_api(int rank);
inline constexpr int kFakeNcclRanksMax = 4;
/// Lets calls that hang return.
void release_nccl_faults();
/// Forgets all groups and faults.
void reset_fake_nccl();

/// "ncclAllReduce" ...: every function of the table. "ncclCommGetAsyncError again" is that function
/// for a communicator that was ready before and has had no call since.
const std::vector<std::string>& nccl_functions();

}  // namespace trainyard::testing_support
