#include "worker/safetensors/header_handler.h"

#include <limits>
#include <set>

#include <nlohmann/json.hpp>

namespace trainyard::safetensors {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
// The reference implementation's tensors have few axes; the limit keeps messages and loops small.
constexpr size_t kMaxAxes = 64;

/// Builds a Header from parser events and refuses everything that is not one. A document object
/// model would silently keep the last of two equal keys.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Header header;
  std::string error;

  bool null() override { return fail("null"); }
  bool boolean(bool) override { return fail("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return fail("a fraction"); }
  bool binary(binary_t&) override { return fail("binary data"); }
  bool number_integer(number_integer_t value) override {
    return fail("the negative number " + std::to_string(value));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > uint64_t{std::numeric_limits<int64_t>::max()}) {
      return fail("the number " + std::to_string(value));
    }
    if (where_ == Where::kShape && entry_.shape.size() < kMaxAxes) {
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (where_ == Where::kOffsets && offsets_ < 2) {
      (offsets_ == 0 ? entry_.begin : entry_.end) = static_cast<int64_t>(value);
      ++offsets_;
      return true;
    }
    return fail("the number " + std::to_string(value));
  }

  bool string(string_t& value) override {
    if (where_ == Where::kMetadata) {
      if (!header.metadata.emplace(key_, value).second) return fail_duplicate();
      return true;
    }
    if (where_ == Where::kTensor && key_ == "dtype") {
      entry_.dtype_name = value;
      return true;
    }
    return fail("a string");
  }

  bool start_object(std::size_t) override {
    switch (where_) {
      case Where::kStart:
        where_ = Where::kTop;
        return true;
      case Where::kTop:
        where_ = key_ == kMetadataKey ? Where::kMetadata : Where::kTensor;
        if (where_ == Where::kTensor) {
          entry_ = {};
          entry_.name = key_;
          offsets_ = 0;
          members_.clear();
        }
        return true;
      default:
        return fail("an object");
    }
  }

  bool key(string_t& value) override {
    key_ = value;
    if (where_ == Where::kTop && !names_.insert(value).second) return fail_duplicate();
    if (where_ == Where::kTensor) {
      if (!members_.insert(value).second) return fail_duplicate();
      if (value != "dtype" && value != "shape" && value != "data_offsets") {
        error = "tensor \"" + entry_.name + "\": unknown member \"" + value + "\"";
        return false;
      }
    }
    return true;
  }

  bool end_object() override {
    if (where_ == Where::kTensor) {
      if (members_.size() != 3 || offsets_ != 2) {
        error = "tensor \"" + entry_.name + "\": wanted dtype, shape and two data_offsets";
        return false;
      }
      header.entries.push_back(std::move(entry_));
    }
    where_ = where_ == Where::kTop ? Where::kEnd : Where::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ == Where::kTensor && key_ == "shape") {
      where_ = Where::kShape;
    } else if (where_ == Where::kTensor && key_ == "data_offsets") {
      where_ = Where::kOffsets;
    } else {
      return fail("an array");
    }
    return true;
  }

  bool end_array() override {
    where_ = Where::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    error = "the header is not JSON at byte " + std::to_string(position) + ": " + exception.what();
    return false;
  }

 private:
  enum class Where : uint8_t { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool fail(const std::string& found) {
    error = "the header has " + found + " where none belongs" +
            (key_.empty() ? std::string() : ", at \"" + key_ + "\"");
    if (where_ == Where::kTensor || where_ == Where::kShape || where_ == Where::kOffsets) {
      error += " of tensor \"" + entry_.name + "\"";
    }
    return false;
  }
  bool fail_duplicate() {
    error = "the header has \"" + key_ + "\" twice";
    return false;
  }

  Where where_ = Where::kStart;
  std::string key_;
  std::set<std::string> names_;
  std::set<std::string> members_;
  Entry entry_;
  int offsets_ = 0;
};

}  // namespace

Result<Header> parse_header_json(std::string_view text) {
  // The format wants the first byte to be '{' (and allows spaces at the end).
  if (text.empty() || text.front() != '{') {
    return Error{ErrorCode::kInvalidData, "the header does not begin with '{'"};
  }
  HeaderHandler handler;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &handler)) {
    return Error{ErrorCode::kInvalidData, handler.error};
  }
  return std::move(handler.header);
}

}  // namespace trainyard::safetensors
