#pragma once

#include <cstdint>

namespace trainyard::test {

/// Calls of global operator new so far, in all threads. Linking allocation_counter.cc into a test
/// replaces the operator; take the difference around what must not allocate.
int64_t allocations();

/// Bytes of the largest of them since the last call of this; 0: none.
int64_t take_largest_allocation();

}  // namespace trainyard::test
