#include "tests/support/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "tests/support/fake_nccl_operations.h"

namespace trainyard::testing_support {

namespace nccl = comm::nccl;

namespace {

FakeNccl the_fake;
std::recursive_mutex mutex;
std::condition_variable_any released;
bool is_released = false;
int hanging = 0;

using Lock = std::unique_lock<std::recursive_mutex>;

constexpr int kInternalError = 3;    // ncclInternalError
constexpr int kInvalidArgument = 4;  // ncclInvalidArgument
constexpr int kInvalidUsage = 5;     // ncclInvalidUsage
constexpr int kRemoteError = 6;      // ncclRemoteError

struct Group {
  int ranks = 0;
  int joined = 0;
  std::map<std::string, std::shared_ptr<Meeting>> meetings;
  bool is_ended = false;
};
std::map<std::string, std::shared_ptr<Group>> groups;
int ids_made = 0;

}  // namespace

struct FakeComm {
  std::shared_ptr<Group> group;
  int of_world = 0;
  int rank = 0;
  int polls_left = 0;
  bool was_ready = false;  ///< when last asked since its last call
  bool is_finalized = false;
  bool never_ready = false;
  int async_error = nccl::kSuccess;
  int polls_to_error = 0;
  std::shared_ptr<Meeting> first;    ///< operation, in which members connect to each other
  std::map<std::string, int> begun;  ///< operations, by who takes part
  std::set<std::string> connected;   ///< for messages, by the first operations of all groups
  std::vector<std::shared_ptr<simt::Gate>> waits_for;
};

namespace {

std::set<FakeComm*> comms;

thread_local int group_depth = 0;
thread_local std::vector<Part> grouped;

/// Sends at its begin, so that what is not there by then is missing, and receives when all have.
void enqueue(const Part& part) {
  std::shared_ptr<Meeting> meeting;
  {
    const Lock lock(mutex);
    auto& known = part.comm->group->meetings[part.key];
    if (known == nullptr) {
      known = std::make_shared<Meeting>();
      known->signature = part.signature;
      known->members = part.members;
      known->sent.resize(static_cast<size_t>(part.members));
      for (int member = 0; member < part.members; ++member)
        known->gates.push_back(simt::make_gate());
    }
    meeting = known;
    ++meeting->posted;
    if (part.comm->first == nullptr) part.comm->first = meeting;
    if (meeting->signature != part.signature) {
      complain("members of a group call different operations: " + meeting->signature + " and " +
               part.signature);
    }
    part.comm->waits_for.push_back(meeting->gates[static_cast<size_t>(part.place)]);
  }
  if (part.never_done) return;
  (void)simt::enqueue_work(part.stream, "nccl arrives", [part, meeting] {
    if (part.from_bytes > 0) simt::touch_device(part.from, part.from_bytes, false);
    const Lock lock(mutex);
    meeting->sent[static_cast<size_t>(part.place)].assign(part.from, part.from + part.from_bytes);
    const bool all = ++meeting->arrived == meeting->members;
    for (const auto& gate : meeting->gates) {
      simt::join_gate(*gate);
      if (all) simt::open_gate(*gate);
    }
  });
}
void enqueue_end(const Part& part) {
  std::shared_ptr<Meeting> meeting;
  {
    const Lock lock(mutex);
    meeting = part.comm->group->meetings[part.key];
  }
  (void)simt::enqueue_work(
      part.stream, "nccl",
      [part, meeting] {
        const Lock lock(mutex);
        if (meeting->arrived < meeting->members) return;  // aborted
        const std::vector<std::byte>& sent = meeting->sent[static_cast<size_t>(part.place)];
        if (!std::equal(sent.begin(), sent.end(), part.from))
          complain("a buffer was written to while NCCL read it");
        if (part.to_bytes == 0) return;
        std::vector<std::byte> result(part.to_bytes);
        part.result(*meeting, result.data());
        simt::touch_device(part.to, part.to_bytes, true);
        std::memcpy(part.to, result.data(), part.to_bytes);
      },
      meeting->gates[static_cast<size_t>(part.place)]);
}
void run(const std::vector<Part>& parts) {
  for (const Part& part : parts)
    enqueue(part);
  for (const Part& part : parts)
    enqueue_end(part);
}

/// What fake_nccl() asks of this call.
NcclFault fault_asked_for(const char* function, int of_world) {
  Lock lock(mutex);
  if (of_world != the_fake.fault_rank) return NcclFault::kNone;
  const int number = the_fake.calls[function]++;
  if (function == the_fake.first_fails) return NcclFault::kError;
  if (function != the_fake.fault_function || number != the_fake.fault_at) return NcclFault::kNone;
  if (the_fake.fault == NcclFault::kHang) {
    ++hanging;
    released.wait(lock, [] { return is_released; });
    --hanging;
    released.notify_all();
  }
  return the_fake.fault;
}

/// Begins a function of the library: what it enqueues while this lives may have a fault, too.
class Call {
 public:
  /// `function` outlives it.
  Call(const char* function, int of_world)
      : library_(function, of_world),
        fault_(library_.fails() ? NcclFault::kError : fault_asked_for(function, of_world)) {}
  NcclFault fault() const { return fault_; }
  bool is_refused() const { return fault_ == NcclFault::kError || fault_ == NcclFault::kHang; }

 private:
  const simt::LibraryCall library_;
  const NcclFault fault_;
};

FakeComm* find(nccl::Comm comm) {
  const Lock lock(mutex);
  auto* const found = static_cast<FakeComm*>(comm);
  if (comms.contains(found)) return found;
  complain("a communicator that does not exist, or no longer");
  return nullptr;
}

}  // namespace

int complain(const std::string& text) {
  const Lock lock(mutex);
  if (the_fake.complaint.empty()) the_fake.complaint = text;
  return kInvalidUsage;
}

int ranks_of(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  return own != nullptr ? own->group->ranks : 0;
}
int rank_of(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  return own != nullptr ? own->rank : 0;
}

int operate(const char* function, nccl::Comm comm, Part part) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return kInvalidArgument;
  const Call call(function, own->of_world);
  const NcclFault fault = call.fault();
  if (call.is_refused()) return kInternalError;
  {
    const Lock lock(mutex);
    const std::string name = function;
    if (own->polls_left > 0 && group_depth == 0) return complain(name + " before it is ready");
    if (own->is_finalized) return complain(name + " after ncclCommFinalize");
    if (name == "ncclSend" || name == "ncclRecv") {
      if (group_depth > 0 && own->first == nullptr) {
        own->connected.insert(part.key);
      } else if (!own->connected.contains(part.key)) {
        return complain(name + ": the peers connect in the middle of a step");
      }
    }
    if (fault == NcclFault::kAsyncError) own->async_error = kRemoteError;
    if (fault == NcclFault::kNeverReady) own->never_ready = true;
    own->polls_left = the_fake.polls;
    own->was_ready = false;
    part.comm = own;
    part.never_done = fault == NcclFault::kNeverDone || fault == NcclFault::kLateError;
    if (fault == NcclFault::kLateError) own->polls_to_error = the_fake.polls + 4;
    // A rank may send to itself, and is both members then.
    int& begun = own->begun[part.key + ", place " + std::to_string(part.place)];
    part.key += " #" + std::to_string(begun++);
  }
  if (group_depth > 0) {
    grouped.push_back(part);
  } else {
    run({part});
  }
  return nccl::kInProgress;
}

namespace {

/// Functions without a communicator know the rank by the table they are of.
template <int kRank>
int get_version(int* version) {
  const Call call("ncclGetVersion", kRank);
  if (call.is_refused()) return kInternalError;
  *version = the_fake.version;
  return nccl::kSuccess;
}

template <int kRank>
int get_unique_id(nccl::UniqueId* id) {
  const Call call("ncclGetUniqueId", kRank);
  if (call.is_refused()) return kInternalError;
  const Lock lock(mutex);
  const std::string name = "fake " + std::to_string(++ids_made);
  std::copy(name.begin(), name.end(), id->data.begin());
  return nccl::kSuccess;
}

/// One thread has one asynchronous call under way, or several in a group.
bool is_another_under_way(int of_world) {
  return group_depth == 0 && std::any_of(comms.begin(), comms.end(), [&](const FakeComm* comm) {
           return comm->of_world == of_world && comm->polls_left > 0;
         });
}

template <int kRank>
int comm_init(nccl::Comm* comm, int ranks, nccl::UniqueId id, int rank, nccl::Config* config) {
  const Call call("ncclCommInitRankConfig", kRank);
  if (call.is_refused()) return kInternalError;
  const Lock lock(mutex);
  if (config->size != 48 || config->magic != 0xcafebeef || config->version < 21800)
    return complain("a configuration that NCCL 2.18 does not read");
  if (config->blocking != 0) return complain("a communicator whose calls block");
  if (is_another_under_way(kRank))
    return complain("ncclCommInitRankConfig outside a group, while another is in progress");
  if (rank < 0 || rank >= ranks) return complain("a rank outside its group");
  auto& group = groups[std::string(id.data.data())];
  if (id.data[0] == '\0') return complain("an id that ncclGetUniqueId has not made");
  if (group == nullptr) group = std::make_shared<Group>();
  group->ranks = ranks;
  ++group->joined;
  auto* const made = new FakeComm{.group = group,
                                  .of_world = kRank,
                                  .rank = rank,
                                  .polls_left = the_fake.polls,
                                  .never_ready = call.fault() == NcclFault::kNeverReady,
                                  .first = nullptr,
                                  .begun = {},
                                  .waits_for = {}};
  if (call.fault() == NcclFault::kAsyncError) made->async_error = kRemoteError;
  comms.insert(made);
  ++the_fake.live_comms;
  *comm = made;
  return nccl::kInProgress;
}

int comm_async_error(nccl::Comm comm, int* error) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return kInvalidArgument;
  const Call call(own->was_ready ? "ncclCommGetAsyncError again" : "ncclCommGetAsyncError",
                  own->of_world);
  if (call.is_refused()) return kInternalError;
  const Lock lock(mutex);
  if (own->polls_to_error > 0 && --own->polls_to_error == 0) own->async_error = kRemoteError;
  *error = own->async_error;
  const bool waits_for_peers = own->group->joined < own->group->ranks ||
                               (own->first != nullptr && own->first->posted < own->first->members);
  if (own->async_error == nccl::kSuccess &&
      (own->polls_left > 0 || own->never_ready || waits_for_peers)) {
    *error = nccl::kInProgress;
    --own->polls_left;
  }
  own->was_ready = *error == nccl::kSuccess;
  return nccl::kSuccess;
}

int comm_finalize(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return kInvalidArgument;
  const Call call("ncclCommFinalize", own->of_world);
  if (call.is_refused()) return kInternalError;
  const Lock lock(mutex);
  if (own->is_finalized) return complain("a communicator is finalized twice");
  if (is_another_under_way(own->of_world))
    return complain("ncclCommFinalize outside a group, while another call is in progress");
  own->is_finalized = true;
  own->never_ready = call.fault() == NcclFault::kNeverReady;
  own->polls_left = the_fake.polls;
  own->was_ready = false;
  ++the_fake.finalized;
  return nccl::kInProgress;
}

void drop(FakeComm* comm) {
  comms.erase(comm);
  --the_fake.live_comms;
  delete comm;
}

int comm_destroy(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return kInvalidArgument;
  const Call call("ncclCommDestroy", own->of_world);
  if (call.is_refused()) return kInternalError;
  const Lock lock(mutex);
  if (!own->is_finalized || own->polls_left > 0)
    return complain("ncclCommDestroy before ncclCommFinalize is done");
  drop(own);
  return nccl::kSuccess;
}

int comm_abort(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return kInvalidArgument;
  const Call call("ncclCommAbort", own->of_world);
  if (call.fault() == NcclFault::kError) return kInternalError;
  std::vector<std::shared_ptr<simt::Gate>> waits_for;
  {
    const Lock lock(mutex);
    waits_for = std::move(own->waits_for);
    ++the_fake.aborted;
    drop(own);
  }
  // The kernels end, on this rank; peers' wait for what will not come until they abort, too.
  for (const auto& gate : waits_for)
    simt::open_gate(*gate);
  return nccl::kSuccess;
}

template <int kRank>
const char* error_string(int) {
  const Call call("ncclGetErrorString", kRank);
  return call.is_refused() ? nullptr : "the fake's error";
}
const char* last_error(nccl::Comm comm) {
  FakeComm* const own = find(comm);
  if (own == nullptr) return nullptr;
  const Call call("ncclGetLastError", own->of_world);
  return call.is_refused() ? nullptr : "the fake's last words";
}

template <int kRank>
int group_start() {
  const Call call("ncclGroupStart", kRank);
  if (call.is_refused()) return kInternalError;
  ++group_depth;
  return nccl::kSuccess;
}
template <int kRank>
int group_end() {
  if (group_depth == 0) return complain("ncclGroupEnd without ncclGroupStart");
  const Call call("ncclGroupEnd", kRank);
  const NcclFault fault = call.fault();
  --group_depth;
  std::vector<Part> parts = std::exchange(grouped, {});
  if (call.is_refused()) return kInternalError;
  {
    const Lock lock(mutex);
    for (Part& part : parts) {
      part.never_done = part.never_done || fault == NcclFault::kNeverDone;
      if (fault == NcclFault::kAsyncError) part.comm->async_error = kRemoteError;
      if (fault == NcclFault::kNeverReady) part.comm->never_ready = true;
    }
  }
  run(parts);
  return nccl::kInProgress;
}

template <int kRank>
nccl::Api api_of() {
  return {.get_version = get_version<kRank>,
          .get_unique_id = get_unique_id<kRank>,
          .comm_init = comm_init<kRank>,
          .comm_async_error = comm_async_error,
          .comm_finalize = comm_finalize,
          .comm_destroy = comm_destroy,
          .comm_abort = comm_abort,
          .error_string = error_string<kRank>,
          .last_error = last_error,
          .group_start = group_start<kRank>,
          .group_end = group_end<kRank>,
          .all_reduce = all_reduce,
          .reduce_scatter = reduce_scatter,
          .all_gather = all_gather,
          .broadcast = broadcast,
          .reduce = reduce,
          .send = send,
          .receive = receive};
}

}  // namespace

FakeNccl& fake_nccl() { return the_fake; }

comm::nccl::Api fake_nccl_api(int rank) {
  switch (rank) {
    case 0:
      return api_of<0>();
    case 1:
      return api_of<1>();
    case 2:
      return api_of<2>();
    default:
      return api_of<3>();
  }
}

void release_nccl_faults() {
  Lock lock(mutex);
  is_released = true;
  released.notify_all();
  released.wait(lock, [] { return hanging == 0; });
}

void reset_fake_nccl() {
  const Lock lock(mutex);
  for (FakeComm* const comm : comms)  // whose abort has failed
    delete comm;
  comms.clear();
  the_fake = {};
  is_released = false;
  groups.clear();
}

const std::vector<std::string>& nccl_functions() {
  static const std::vector<std::string> all = {"ncclGetVersion",
                                               "ncclGetUniqueId",
                                               "ncclCommInitRankConfig",
                                               "ncclCommGetAsyncError",
                                               "ncclCommGetAsyncError again",
                                               "ncclCommFinalize",
                                               "ncclCommDestroy",
                                               "ncclCommAbort",
                                               "ncclGetErrorString",
                                               "ncclGetLastError",
                                               "ncclGroupStart",
                                               "ncclGroupEnd",
                                               "ncclAllReduce",
                                               "ncclReduceScatter",
                                               "ncclAllGather",
                                               "ncclBroadcast",
                                               "ncclReduce",
                                               "ncclSend",
                                               "ncclRecv"};
  return all;
}

}  // namespace trainyard::testing_support
