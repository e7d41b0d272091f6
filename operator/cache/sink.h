#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "common/base/time.h"
#include "operator/kube/client.h"

namespace trainyard::cache {

/// Where a reflector puts what it sees. All calls come from the reflector's thread.
class Sink {
 public:
  virtual ~Sink() = default;

  /// A list begins: what an unfinished one before has gathered is dropped.
  virtual void begin_list() = 0;
  /// An object of the list; not visible yet.
  virtual void list_item(const nlohmann::json& object) = 0;
  /// The list is complete: what it holds replaces everything. `started`: when it was asked for, so
  /// that everything done before is in it. `version`: the resourceVersion of the whole.
  virtual void end_list(MonoTime started, const std::string& version) = 0;
  /// kAdded, kModified, kDeleted; or kBookmark, whose object has nothing but the version up to
  /// which everything has been shown.
  virtual void event(kube::EventType type, const nlohmann::json& object) = 0;
};

}  // namespace trainyard::cache
