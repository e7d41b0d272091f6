#pragma once

#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <linux/userfaultfd.h>
#include <string>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/unique_fd.h"

namespace trainyard::testing_support {

/// A disk that answers no more: every page that this process has mapped of files below a folder is
/// taken away, and who touches one waits in the kernel, as for a dead mount, until this object
/// goes.
class HangingFiles {
 public:
  /// Not every kernel lets processes keep page faults waiting, and those within system calls (as of
  /// populate()) only for root.
  static bool possible() { return HangingFiles().fd_.valid(); }

  explicit HangingFiles(const std::string& folder) : HangingFiles() {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0;
      unsigned long end = 0;
      if (line.find(" " + folder) == std::string::npos) continue;
      if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
      take_away(begin, end - begin);
    }
  }
  /// Mappings that hang.
  int count() const { return count_; }

 private:
  HangingFiles() : fd_(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC))) {
    uffdio_api api{};
    api.api = UFFD_API;
    if (fd_.valid() && ::ioctl(fd_.get(), UFFDIO_API, &api) != 0) fd_.reset();
  }

  void take_away(unsigned long begin, unsigned long size) {
    void* const at = reinterpret_cast<void*>(begin);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (::mmap(at, size, PROT_READ | PROT_WRITE, flags, -1, 0) != at) return;
    uffdio_register range{};
    range.range = {.start = begin, .len = size};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(fd_.get(), UFFDIO_REGISTER, &range) == 0) ++count_;
  }

  UniqueFd fd_;
  int count_ = 0;
};

}  // namespace trainyard::testing_support
