#pragma once

#include <memory>

namespace trainyard::comm {

class LocalConnector;

/// What ranks that are threads of one process share: the memory between them and who is there.
/// One-shot like a communicator: one job, one generation; make a new one for the next.
/// Thread-safe. Must be held by shared_ptr; communicators keep it alive.
class LocalWorld {
 public:
  LocalWorld();
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

 private:
  friend class LocalConnector;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace trainyard::comm
