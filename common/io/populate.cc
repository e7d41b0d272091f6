#include "common/io/populate.h"

#include <cerrno>
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>

namespace trainyard {

Status populate(std::span<const std::byte> mapped) {
  if (mapped.empty()) return {};
  static const auto page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t in_page = reinterpret_cast<uintptr_t>(mapped.data()) % page_bytes;
  auto* const begin = const_cast<std::byte*>(mapped.data()) - in_page;
  int result = 0;
  do {
    result = ::madvise(begin, mapped.size() + in_page, MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0 || errno == EINVAL) return {};  // EINVAL: an older kernel
  // EFAULT stands for the SIGBUS that a use would have raised (madvise(2)).
  return io_error("bring mapped bytes into memory", errno == EFAULT ? EIO : errno);
}

}  // namespace trainyard
