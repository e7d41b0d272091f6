#include "worker/comm/host/copy.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace trainyard::comm {
namespace {

TEST(CopyTest, EveryAlignmentAndLengthIsCopiedAndNothingBeside) {
  std::vector<std::byte> from(400);
  for (size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const size_t from_offset : {0U, 1U, 8U, 63U}) {
    for (size_t to_offset = 0; to_offset < 64; ++to_offset) {
      for (const int64_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 300}) {
        std::vector<std::byte> to(500, std::byte{0xEE});
        std::vector<std::byte> wanted = to;
        std::memcpy(wanted.data() + to_offset, from.data() + from_offset,
                    static_cast<size_t>(bytes));
        copy_past_caches(to.data() + to_offset, from.data() + from_offset, bytes);
        ASSERT_EQ(to, wanted) << from_offset << ' ' << to_offset << ' ' << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace trainyard::comm
