#include "tests/comm/worker/comm/world.h"

#include <thread>
#include <utility>

#include <gtest/gtest.h>

namespace trainyard::comm::testing {

Result<std::unique_ptr<Communicator>> World::connect(int rank) {
  const auto at = static_cast<size_t>(rank);
  if (kind == TransportKind::kLocal) return make_local_communicator(options[at], local);
  return make_communicator(kind, options[at], std::move(listeners[at]));
}

World make_world(TransportKind kind, int size, std::chrono::milliseconds deadline,
                 const std::string& host) {
  World world;
  world.kind = kind;
  Options options;
  options.generation = 7;
  options.job_uid = "6c1a7f0e-test";
  options.key.assign(32, std::byte{42});
  options.deadline = deadline;
  for (int rank = 0; rank < size; ++rank) {
    Endpoint endpoint{rank, "host-a", ""};
    if (kind == TransportKind::kLocal) {
      world.listeners.emplace_back();
    } else {
      auto listener = Listener::bind(host);
      EXPECT_TRUE(listener.has_value()) << listener.error().message;
      endpoint.address = listener->address();
      world.listeners.push_back(*std::move(listener));
    }
    options.endpoints.push_back(endpoint);
  }
  for (int rank = 0; rank < size; ++rank) {
    options.rank = rank;
    world.options.push_back(options);
  }
  world.local = std::make_shared<LocalWorld>();
  return world;
}

void for_each_rank(int size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back(body, rank);
  for (std::thread& thread : threads)
    thread.join();
}

void run_world(TransportKind kind, int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds deadline) {
  World world = make_world(kind, size, deadline);
  for_each_rank(size, [&](int rank) {
    auto communicator = world.connect(rank);
    ASSERT_TRUE(communicator.has_value()) << communicator.error().message;
    body(**communicator);
  });
}

}  // namespace trainyard::comm::testing
