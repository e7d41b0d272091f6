#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace trainyard::control {

/// How much strangers may take of a port.
struct FrontBounds {
  size_t connections = 4096;
  /// Connections of one peer address that are read before they are admitted; more wait unread. Many
  /// agents may share an address (SNAT).
  size_t read_per_address = 64;
  /// Bytes read of a connection before it is admitted: a thousand ranks' addresses and heartbeats
  /// fit. Beyond, it is read no further until then.
  int64_t bytes = 256 << 10;
  /// Of all connections that are not admitted.
  int64_t bytes_of_all = 64 << 20;
  /// From the connection to its request, which shows the token.
  std::chrono::seconds time_to_show{10};
};

/// Which connections are read, which wait and which are cut, by the bounds. Pure.
class Places {
 public:
  using Id = uint64_t;
  struct Counts {
    int64_t connections = 0;
    int64_t waiting = 0;   ///< of them, unread
    int64_t admitted = 0;  ///< of them
    int64_t bytes = 0;     ///< read of those that are not admitted
  };

  explicit Places(const FrontBounds& bounds) : bounds_(bounds) {}

  /// A new connection waits. Ids rise.
  void add(Id id, const std::string& address);
  void remove(Id id);
  /// Nothing of it counts any more but that it is there.
  void admit(Id id);
  /// So much has been read of it.
  void set_bytes(Id id, int64_t bytes);

  /// The connection of this address that is to be read from now on, where it may have one more: the
  /// newest, since agents that came before have given up sooner.
  std::optional<Id> take_turn(const std::string& address);
  /// One that is to be cut, because there are too many connections or too many bytes: of the
  /// address that has most of them, so that no address takes another one's place. Of addresses
  /// that have equally many, that whose oldest connection came first: each has had as long as
  /// others to show its token.
  std::optional<Id> excess() const;

  Counts counts() const;

 private:
  enum class State { kWaiting, kRead, kAdmitted };
  struct Entry {
    std::string address;
    State state = State::kWaiting;
    int64_t bytes = 0;
  };
  struct Address {
    std::vector<Id> waiting;  ///< the newest last
    std::set<Id> read;        ///< not admitted
    int64_t bytes = 0;        ///< of those
  };

  void leave(Id id, Entry& entry);
  static Id oldest_of(const Address& address);

  const FrontBounds bounds_;
  std::map<Id, Entry> entries_;
  std::map<std::string, Address> addresses_;  ///< those with connections that are not admitted
  int64_t waiting_ = 0;
  int64_t admitted_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace trainyard::control
