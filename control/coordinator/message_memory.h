#pragma once

#include <cstdint>

namespace google::protobuf {
class Descriptor;
namespace io {
class ZeroCopyInputStream;
}
}  // namespace google::protobuf

namespace trainyard::control {

/// Estimates from above the memory that an encoded message takes once it is parsed, which may be a
/// hundred times its length: an empty part has two bytes on the wire. Reads to the end of
/// `encoded`, or to where the estimate exceeds `limit`. Bytes that are no message count as far as
/// they can be read.
int64_t parsed_memory(google::protobuf::io::ZeroCopyInputStream& encoded,
                      const google::protobuf::Descriptor& type, int64_t limit);

}  // namespace trainyard::control
