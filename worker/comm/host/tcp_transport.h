#pragma once

#include <memory>
#include <vector>

#include "common/base/unique_fd.h"
#include "worker/comm/host/transport.h"

namespace trainyard::comm {

/// Messages over one socket for each peer, header and payload in one system call where both are
/// short. Payloads go between the socket and the caller's buffer directly, except that a reduction
/// passes through a staging buffer that stays in the cache.
class TcpTransport final : public Transport {
 public:
  /// `connections` by member, non-blocking; invalid for the own one. Errors: kIo.
  static Result<std::shared_ptr<TcpTransport>> make(const GroupIdentity& identity,
                                                    std::vector<UniqueFd> connections,
                                                    std::chrono::nanoseconds spin);

  Result<Moved> advance(Transfer& transfer, int64_t sendable) override;
  void wait(std::span<Transfer* const> pending, std::chrono::nanoseconds at_most) override;
  std::chrono::nanoseconds spin() const override { return spin_; }
  /// A goodbye comes on another connection; the end of the data is that of the data connection.
  bool goodbye_follows_data() const override { return false; }
  void wake() override;

 private:
  /// The bytes of an element whose end has not arrived.
  struct Carry {
    std::byte bytes[8];
    int64_t count = 0;
  };

  TcpTransport(const GroupIdentity& identity, std::vector<UniqueFd> connections,
               std::chrono::nanoseconds spin, UniqueFd wake);

  Result<Moved> send(Transfer& transfer, int64_t sendable);
  Result<Moved> receive(Transfer& transfer);
  void take_payload(Transfer& transfer, int64_t received);

  const std::vector<UniqueFd> connections_;
  const std::chrono::nanoseconds spin_;
  const UniqueFd wake_;
  std::unique_ptr<std::byte[]> staging_;
  std::vector<Carry> carries_;  ///< by member
};

}  // namespace trainyard::comm
