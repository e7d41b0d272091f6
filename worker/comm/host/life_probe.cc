#include "worker/comm/host/life_probe.h"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>

namespace trainyard::comm {
namespace {

/// Only these come from the machine of a process that is gone; a network that loses the way to a
/// machine says nothing about its processes.
bool means_process_gone(int error_number) {
  return error_number == ECONNREFUSED || error_number == ECONNRESET;
}

int error_of(int fd) {
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &length) == 0 ? error_number : errno;
}

}  // namespace

bool LifeProbe::gone(int rank) {
  UniqueFd& fd = connections_[rank];
  if (!fd.valid()) {
    const SocketAddress& address = addresses_[static_cast<size_t>(rank)];
    fd.reset(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    // Out of descriptors: nothing is known.
    if (!fd.valid()) return false;
    if (::connect(fd.get(), address.raw(), address.length) != 0 && errno != EINPROGRESS) {
      const int error_number = errno;
      fd.reset();
      return means_process_gone(error_number);
    }
  }
  pollfd entry{fd.get(), POLLIN | POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) <= 0) return false;
  // Closed: either the process ended, or its hub dropped a stranger who said nothing. The next look
  // connects again, and tells.
  const int error_number = error_of(fd.get());
  fd.reset();
  return means_process_gone(error_number);
}

}  // namespace trainyard::comm
