#pragma once

#include <memory>

#include "common/base/error.h"

namespace trainyard::engine {

/// A stream of a device beside that of its one thread, on which a library enqueues what it does.
/// Ahead of the device's other work where both could run.
class SideStream {
 public:
  /// A place in what has been enqueued on a stream of the device.
  class Moment {
   public:
    virtual ~Moment() = default;
    /// Whether the stream has come to it. Never blocks; any thread. Errors: what a kernel before it
    /// failed with.
    virtual Result<bool> passed() const = 0;
  };
  using MomentPtr = std::shared_ptr<Moment>;

  virtual ~SideStream() = default;
  /// What the device's library calls a stream.
  virtual void* handle() const = 0;

  /// The device's thread calls it: after all that it has enqueued. Errors: the device's.
  virtual Result<MomentPtr> device_now() = 0;
  /// The device's thread calls it: what it enqueues next begins when the side stream has come to
  /// `moment`.
  virtual Status device_after(const Moment& moment) = 0;

  /// The library's thread, before all else that it does with the device.
  virtual Status enter() = 0;
  /// The library's thread: what is enqueued here next begins when the device has come to `moment`.
  virtual Status after(const Moment& moment) = 0;
  /// The library's thread: after all that has been enqueued here.
  virtual Result<MomentPtr> now() = 0;
};

}  // namespace trainyard::engine
