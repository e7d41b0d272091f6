#pragma once

#include <cstddef>
#include <span>

#include "common/base/error.h"

namespace trainyard {

/// Brings a part of a mapped file (MappedFile::bytes) into memory, so that bytes which cannot be
/// read are an error here instead of a SIGBUS at their use. Does nothing before Linux 5.14. Errors:
/// kIo: the file has been truncated, or its disk does not give the bytes.
Status populate(std::span<const std::byte> mapped);

}  // namespace trainyard
