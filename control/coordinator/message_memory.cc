#include "control/coordinator/message_memory.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

namespace trainyard::control {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

/// A number in a list, and a field that the type does not know, with the list's room to grow.
constexpr int64_t kElementBytes = 32;
/// A text, or a place in a list of messages.
constexpr int64_t kTextBytes = 64;

class Estimate {
 public:
  explicit Estimate(int64_t limit) : limit_(limit) {}

  /// False: `input` is to be read no further.
  bool add(CodedInputStream& input, const Descriptor& type) {
    const Message* empty = MessageFactory::generated_factory()->GetPrototype(&type);
    bytes_ += static_cast<int64_t>(empty->SpaceUsedLong());
    while (bytes_ <= limit_) {
      const uint32_t tag = input.ReadTag();
      if (tag == 0) return input.ConsumedEntireMessage();
      const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!add_delimited(input, field)) return false;
        continue;
      }
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      if (field == nullptr || field->is_repeated()) bytes_ += kElementBytes;
    }
    return false;
  }

  int64_t bytes() const { return bytes_; }

 private:
  bool add_delimited(CodedInputStream& input, const FieldDescriptor* field) {
    uint32_t length = 0;
    if (!input.ReadVarint32(&length)) return false;
    bytes_ += kTextBytes;
    if (field != nullptr && field->message_type() != nullptr) {
      const auto outer = input.PushLimit(static_cast<int>(length));
      if (!add(input, *field->message_type())) return false;
      input.PopLimit(outer);
      return true;
    }
    // Of packed numbers each byte may be one.
    const bool is_packed = field != nullptr && field->is_packable();
    bytes_ += int64_t{length} * (is_packed ? kElementBytes / 2 : 1);
    return input.Skip(static_cast<int>(length));
  }

  const int64_t limit_;
  int64_t bytes_ = 0;
};

}  // namespace

int64_t parsed_memory(google::protobuf::io::ZeroCopyInputStream& encoded, const Descriptor& type,
                      int64_t limit) {
  CodedInputStream input(&encoded);
  Estimate estimate(limit);
  estimate.add(input, type);
  return estimate.bytes();
}

}  // namespace trainyard::control
