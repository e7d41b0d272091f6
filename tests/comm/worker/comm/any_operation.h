#pragma once

#include <vector>

#include "worker/comm/communicator.h"

namespace trainyard::comm::testing {

/// Buffers for one operation of any kind on about `elements` int64, rank 0 being the root.
class AnyOperation {
 public:
  AnyOperation(Communicator& communicator, int64_t elements);

  /// Issues it; the buffers are this object's. point_to_point goes once round the ring.
  WorkPtr start(Operation op);

 private:
  Communicator& comm_;
  std::vector<int64_t> data_;
  std::vector<int64_t> other_;
  std::vector<int64_t> counts_;
};

}  // namespace trainyard::comm::testing
