#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/simt/emulation.h"
#include "kernels/simt/runtime.h"
#include "worker/comm/nccl_api.h"

/// The inside of tests/support/fake_nccl.h: what its operations do with bytes, apart from how calls
/// and communicators behave.
namespace trainyard::testing_support {

/// An operation that the members of a group come to, each by its own call.
struct Meeting {
  std::string signature;
  int posted = 0;   ///< members that have called
  int arrived = 0;  ///< whose streams have come to it
  int members = 0;
  std::vector<std::vector<std::byte>> sent;        ///< by rank
  std::vector<std::shared_ptr<simt::Gate>> gates;  ///< what each member's stream waits for
};

struct FakeComm;

/// A call's data on one rank.
struct Part {
  FakeComm* comm = nullptr;
  cudaStream_t stream;
  std::string key;        ///< of the meeting
  std::string signature;  ///< that all members must have in common
  int members;
  int place;  ///< among them
  const std::byte* from;
  size_t from_bytes;
  std::byte* to;
  size_t to_bytes;
  /// Makes what arrives here of what all sent.
  std::function<void(const Meeting& meeting, std::byte* result)> result;
  bool never_done;
};

/// Notes the first rule that is broken; what a call that breaks one returns.
int complain(const std::string& text);
/// Of a communicator that exists; 0 otherwise.
int ranks_of(comm::nccl::Comm comm);
int rank_of(comm::nccl::Comm comm);
/// A call of the operation that `part` describes: its fault, then the stream's work.
int operate(const char* function, comm::nccl::Comm comm, Part part);

// The library's functions, as comm::nccl::Api has them.
int all_reduce(const void* from, void* to, size_t count, int type, int op, comm::nccl::Comm comm,
               comm::nccl::Stream stream);
int reduce_scatter(const void* from, void* to, size_t count, int type, int op,
                   comm::nccl::Comm comm, comm::nccl::Stream stream);
int all_gather(const void* from, void* to, size_t count, int type, comm::nccl::Comm comm,
               comm::nccl::Stream stream);
int broadcast(const void* from, void* to, size_t count, int type, int root, comm::nccl::Comm comm,
              comm::nccl::Stream stream);
int reduce(const void* from, void* to, size_t count, int type, int op, int root,
           comm::nccl::Comm comm, comm::nccl::Stream stream);
int send(const void* from, size_t count, int type, int peer, comm::nccl::Comm comm,
         comm::nccl::Stream stream);
int receive(void* to, size_t count, int type, int peer, comm::nccl::Comm comm,
            comm::nccl::Stream stream);

}  // namespace trainyard::testing_support
