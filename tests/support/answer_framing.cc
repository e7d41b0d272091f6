#include "tests/support/answer_framing.h"

#include <algorithm>
#include <utility>

namespace trainyard::testing_support {
namespace {

/// The value of a header line of this name, or nothing. Names are compared as Go writes them.
std::string_view value_of(const std::string& line, std::string_view name) {
  if (!std::string_view(line).starts_with(name) || line.size() <= name.size()) return {};
  if (line[name.size()] != ':') return {};
  const size_t begin = line.find_first_not_of(' ', name.size() + 1);
  return begin == std::string::npos ? std::string_view() : std::string_view(line).substr(begin);
}

}  // namespace

size_t AnswerFraming::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && !complete()) {
    if (part_ == Part::kBody || part_ == Part::kChunk) {
      const size_t count = std::min(left_, bytes.size() - taken);
      taken += count;
      left_ -= count;
      if (left_ == 0) part_ = part_ == Part::kBody ? Part::kComplete : Part::kChunkEnd;
      continue;
    }
    const char c = bytes[taken++];
    if (c != '\n') {
      if (c != '\r') line_ += c;
      continue;
    }
    end_line(std::exchange(line_, std::string()));
  }
  return taken;
}

void AnswerFraming::end_line(const std::string& line) {
  switch (part_) {
    case Part::kHead:
      read_head_line(line);
      return;
    case Part::kChunkSize:
      left_ = std::stoul(line, nullptr, 16);
      part_ = left_ == 0 ? Part::kTrailer : Part::kChunk;
      return;
    case Part::kChunkEnd:
      part_ = Part::kChunkSize;
      return;
    case Part::kTrailer:
      if (line.empty()) part_ = Part::kComplete;
      return;
    case Part::kBody:
    case Part::kChunk:
    case Part::kComplete:
      return;  // not read by lines
  }
}

void AnswerFraming::read_head_line(const std::string& line) {
  if (line.empty()) {
    if (chunked_) {
      part_ = Part::kChunkSize;
    } else {
      part_ = left_ == 0 ? Part::kComplete : Part::kBody;
    }
    return;
  }
  if (status_ == 0) {
    const size_t space = line.find(' ');
    status_ = space == std::string::npos ? -1 : std::stoi(line.substr(space + 1));
    return;
  }
  if (value_of(line, "Transfer-Encoding") == "chunked") chunked_ = true;
  const std::string_view length = value_of(line, "Content-Length");
  if (!length.empty()) left_ = std::stoul(std::string(length));
}

}  // namespace trainyard::testing_support
