#pragma once

#include <string>
#include <sys/resource.h>

#include "common/base/error.h"

namespace trainyard {

/// A limit of the system, in bytes, on this process and what it starts; ulimit(1) counts it in KiB.
struct ByteLimit {
  __rlimit_resource resource;
  const char* name;
  const char* option;  ///< of ulimit
};

inline constexpr ByteLimit kAddressSpaceLimit{RLIMIT_AS, "limit of address space", "-v"};
/// Anonymous memory, stacks of threads among it (Linux 4.7 and later).
inline constexpr ByteLimit kDataLimit{RLIMIT_DATA, "limit of data size", "-d"};
inline constexpr ByteLimit kStackLimit{RLIMIT_STACK, "limit of stack size", "-s"};
inline constexpr ByteLimit kFileSizeLimit{RLIMIT_FSIZE, "limit of file size", "-f"};

bool is_set(const ByteLimit& limit);

/// That the limit, where it is set, leaves `wanted` bytes. In floating point, as a size that is to
/// be refused may be beyond all integers. `for_what` is empty or begins with a space.
/// Errors: kInvalidConfig, with both figures and what to do.
Status check_limit(const ByteLimit& limit, double wanted, const std::string& for_what = {});

}  // namespace trainyard
