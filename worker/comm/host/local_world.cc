#include "worker/comm/host/local_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "worker/comm/host/local_connector.h"
#include "worker/comm/host/memory_segment.h"
#include "worker/comm/host/memory_transport.h"
#include "worker/comm/host/spin.h"

namespace trainyard::comm {

/// Who is in one group, by member. A member that left or was destroyed is an expired pointer.
struct LocalRoom {
  std::mutex mutex;
  std::condition_variable arrived;
  std::shared_ptr<MemorySegment> segment;
  std::vector<std::weak_ptr<Group>> members;
  std::vector<bool> came;
  std::vector<int> ring;          ///< of the first to come
  std::vector<int> ranks;         ///< in the world, by member
  std::optional<Error> given_up;  ///< somebody waited in vain: nobody meets here any more
  bool met = false;               ///< all have come before anybody gave up

  /// Nobody meets here any more, unless they have; whoever waits wakes. Under `mutex`.
  void give_up(Error why) {
    if (!given_up && !met) given_up = std::move(why);
    arrived.notify_all();
  }

  /// The other members that are here now.
  std::vector<std::shared_ptr<Group>> others(int own) {
    const std::lock_guard lock(mutex);
    std::vector<std::shared_ptr<Group>> found;
    for (int member = 0; member < static_cast<int>(members.size()); ++member) {
      if (member == own) continue;
      if (auto group = members[static_cast<size_t>(member)].lock()) found.push_back(group);
    }
    return found;
  }
};

struct LocalWorld::State {
  std::mutex mutex;
  std::optional<std::pair<std::string, int64_t>> job_and_generation;  ///< of the first to come
  std::map<uint64_t, std::weak_ptr<LocalRoom>> rooms;  ///< by group id, alive while members are
  std::map<int, Error> left;  ///< ranks that have left the world, and what that is to the others

  /// A rank that has left comes to no room any more: whoever waits for it there gives up.
  void leave(int rank, const Error& why) {
    std::vector<std::shared_ptr<LocalRoom>> all;
    {
      const std::lock_guard lock(mutex);
      if (!left.emplace(rank, why).second) return;
      for (const auto& [id, room] : rooms) {
        if (auto living = room.lock()) all.push_back(std::move(living));
      }
    }
    for (const auto& room : all) {
      const std::lock_guard lock(room->mutex);
      for (size_t member = 0; member < room->ranks.size(); ++member) {
        if (room->ranks[member] == rank && !room->came[member]) room->give_up(why);
      }
    }
  }
};

LocalWorld::LocalWorld() : state_(std::make_shared<State>()) {}
LocalWorld::~LocalWorld() = default;

namespace {

/// News by direct calls.
class LocalControl final : public ControlPlane {
 public:
  /// `leave_world` is called when the rank leaves the group, with what that is to the others.
  LocalControl(std::shared_ptr<LocalRoom> room, int own,
               std::function<void(const Error&)> leave_world)
      : room_(std::move(room)), own_(own), leave_world_(std::move(leave_world)) {}

  void send_abort(const Failure& failure) override {
    leave_world_(failure.error);
    for (const auto& group : room_->others(own_))
      group->on_abort(own_, failure);
  }
  void send_waiting(const WaitReport& report) override {
    for (const auto& group : room_->others(own_))
      group->on_waiting(own_, report);
  }
  void send_bye() override {
    leave_world_({ErrorCode::kPeerLost, "it has left"});
    for (const auto& group : room_->others(own_))
      group->on_bye(own_);
  }

 private:
  const std::shared_ptr<LocalRoom> room_;
  const int own_;
  const std::function<void(const Error&)> leave_world_;
};

}  // namespace

LocalConnector::LocalConnector(std::shared_ptr<LocalWorld> world) : world_(std::move(world)) {}

Result<std::shared_ptr<LocalRoom>> LocalConnector::enter(const std::shared_ptr<Group>& group) {
  const GroupIdentity& identity = group->identity();
  LocalWorld::State& world = *world_->state_;
  const std::lock_guard lock(world.mutex);
  const std::pair<std::string, int64_t> mine{identity.job_uid, identity.generation};
  if (!world.job_and_generation) world.job_and_generation = mine;
  if (*world.job_and_generation != mine) {
    return Error{ErrorCode::kConflict, "this local world is of job '" +
                                           world.job_and_generation->first + "' generation " +
                                           std::to_string(world.job_and_generation->second) +
                                           "; job '" + mine.first + "' generation " +
                                           std::to_string(mine.second) + " is refused"};
  }
  auto room = world.rooms[identity.id].lock();
  if (!room) {
    auto made = std::make_shared<LocalRoom>();
    TRAINYARD_ASSIGN(made->segment, MemorySegment::anonymous(identity.size()));
    made->members.resize(static_cast<size_t>(identity.size()));
    made->came.resize(static_cast<size_t>(identity.size()), false);
    made->ring = identity.ring;
    made->ranks = identity.global_ranks;
    for (const int rank : made->ranks) {
      const auto left = world.left.find(rank);
      if (left != world.left.end()) made->given_up = left->second;
    }
    room = std::move(made);
    world.rooms[identity.id] = room;
  }
  return room;
}

Result<std::shared_ptr<Transport>> LocalConnector::connect(const std::shared_ptr<Group>& group) {
  const GroupIdentity& identity = group->identity();
  const auto own = static_cast<size_t>(identity.member);
  TRAINYARD_ASSIGN(std::shared_ptr<LocalRoom> room, enter(group));
  std::unique_lock lock(room->mutex);
  const auto refuse = [&](const std::string& why) {
    Error error{ErrorCode::kConflict, "rank " + std::to_string(identity.own_rank()) + why};
    room->give_up(error);
    return error;
  };
  if (room->came.size() != static_cast<size_t>(identity.size())) {
    return refuse(" wants a world of " + std::to_string(identity.size()) +
                  " ranks, the others one of " + std::to_string(room->came.size()));
  }
  if (room->ring != identity.ring) return refuse(" has another ring order than the others");
  if (room->came[own]) {
    return Error{ErrorCode::kConflict,
                 "rank " + std::to_string(identity.own_rank()) + " has already joined"};
  }
  room->members[own] = group;
  room->came[own] = true;
  // Who comes late is not taken for one whom the others have met: they are gone.
  room->met =
      !room->given_up && std::find(room->came.begin(), room->came.end(), false) == room->came.end();
  room->arrived.notify_all();
  room->arrived.wait_for(lock, identity.deadline, [&] { return room->given_up || room->met; });
  // The end of a smaller group is not the end of its ranks.
  const auto leave_world = [world = world_, rank = identity.own_rank(),
                            is_world = identity.id == 0](const Error& why) {
    if (is_world) world->state_->leave(rank, gave_up(rank, why));
  };
  if (!room->met) {
    if (!room->given_up) {
      std::vector<int> missing;
      for (int member = 0; member < identity.size(); ++member) {
        if (!room->came[static_cast<size_t>(member)]) missing.push_back(identity.rank_of(member));
      }
      room->give_up({ErrorCode::kPeerLost, "meeting the peers: " + describe_ranks(missing) +
                                               " did not come within " +
                                               std::to_string(identity.deadline.count()) + " ms"});
    }
    Error why = *room->given_up;
    lock.unlock();
    leave_world(why);
    return why;
  }
  auto transport =
      std::make_shared<MemoryTransport>(identity, room->segment, spin_for(identity.size()));
  lock.unlock();
  group->attach(std::make_shared<LocalControl>(room, identity.member, leave_world), transport);
  return std::shared_ptr<Transport>(std::move(transport));
}

}  // namespace trainyard::comm
