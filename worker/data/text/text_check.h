#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/error.h"

namespace trainyard::data {

/// Looks at a file's bytes, piece by piece, for what shows that it is no text: the first bytes of
/// an archive or compressed file, a byte-order mark of UTF-16, a pointer that Git LFS or git-annex
/// leaves where a file is not fetched, a zero byte anywhere. Bytes that are not UTF-8 are text of
/// another encoding for all that can be told, and pass.
class TextCheck {
 public:
  /// Errors: kInvalidData naming what was found, where, and what to do.
  Status add(std::string_view piece);

 private:
  int64_t bytes_ = 0;
};

/// Whether a text that begins so is JSON lines: an object on the first line, another on the second.
bool is_json_lines(std::string_view beginning);

}  // namespace trainyard::data
