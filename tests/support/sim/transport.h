#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "operator/kube/transport.h"
#include "tests/support/sim/api_server.h"
#include "tests/support/sim/watch_server.h"

namespace trainyard::sim {

/// What the operator writes; kTryPod changes nothing, and is asked for like a write.
enum class WriteKind {
  kStatus,
  kTryPod,
  kCreatePod,
  kUnlabelPod,
  kDeletePod,
  kService,
  kBudget,
  kEvent,
  kDeleteJob,
};
inline constexpr int kWriteKinds = 9;

/// For tables.
std::string_view name_of(WriteKind kind);
/// nullopt: a read.
std::optional<WriteKind> kind_of(const Call& call);

/// What becomes of one write on its way.
struct Passage {
  enum class Way {
    kPass,
    kDieBefore,    ///< the process ends before it is sent
    kDieAfter,     ///< the process ends when it was carried out, before the answer
    kLoseRequest,  ///< it is not carried out, and no answer comes
    kLoseAnswer,   ///< it is carried out, and no answer comes
    kAnswer,       ///< it is not carried out; `answer` comes
  };
  Way way = Way::kPass;
  Answer answer;
};

/// What becomes of an event before its watcher reads it.
enum class EventWay { kPass, kCut, kExpire };

/// The way of one process's requests to its API server. One thread.
class SimTransport final : public kube::Transport {
 public:
  struct Hooks {
    /// Before each write is sent; may make the world move.
    std::function<Passage(const Call&, WriteKind)> on_write;
    /// Before each event of a resource is read.
    std::function<EventWay(const std::string& plural)> on_event;
  };

  /// All outlive it; `user` is whom the audit log names.
  SimTransport(ApiServer& api, WatchServer& server, const Clock& clock, std::string user,
               Hooks hooks);

  Result<kube::Response> send(const kube::Request& request,
                              const kube::Patience& patience) override;
  Result<kube::Opened> open(const kube::Request& request, const kube::Patience& patience) override;

  /// The newest watch of a resource; nullptr before the first.
  WatchStream* stream(const std::string& plural);
  /// Whether the process has ended: nothing goes out any more.
  bool dead() const { return dead_; }
  void kill() { dead_ = true; }
  /// Cuts every watch; with `expire` the server has lost their versions.
  void cut_watches(bool expire);
  /// Nothing comes on any watch any more, not even its end.
  void silence_watches();

 private:
  friend class SimLines;
  WatchStream::Line read(const std::string& plural, const std::shared_ptr<WatchStream>& stream);

  ApiServer& api_;
  WatchServer& server_;
  const Clock& clock_;
  const std::string user_;
  const Hooks hooks_;
  std::map<std::string, std::shared_ptr<WatchStream>> streams_;  ///< by resource
  bool dead_ = false;
};

}  // namespace trainyard::sim
