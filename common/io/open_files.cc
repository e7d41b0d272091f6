#include "common/io/open_files.h"

#include <algorithm>
#include <sys/resource.h>

namespace trainyard {

void raise_open_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Status allow_open_files(int64_t needed, const std::string& for_what) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};  // not known: left to what opens them
  const auto wanted = static_cast<rlim_t>(std::max<int64_t>(0, needed));
  if (limit.rlim_cur >= wanted) return {};
  if (limit.rlim_max < wanted) {
    return Error{ErrorCode::kInvalidConfig,
                 "limit of open files: found " + std::to_string(limit.rlim_max) +
                     " (ulimit -Hn), wanted at least " + std::to_string(wanted) + " for " +
                     for_what + "; raise it (ulimit -n " + std::to_string(wanted) +
                     ", as root or in limits.conf)"};
  }
  limit.rlim_cur = wanted;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return {};
}

}  // namespace trainyard
