#include "worker/data/text/text_check.h"

#include <string>

#include "common/text/pointer_file.h"

namespace trainyard::data {
namespace {

using std::string_view_literals::operator""sv;

struct Beginning {
  std::string_view bytes;
  const char* found;
  const char* advice;
};

constexpr char kUnpack[] = "unpack it first";
constexpr char kConvert[] = "convert it, as by iconv -t UTF-8";

// The longer of two that begin alike stands first.
constexpr Beginning kBeginnings[] = {
    {"\x1F\x8B"sv, "gzip data", kUnpack},
    {"PK\x03\x04"sv, "a zip archive", kUnpack},
    {"\x28\xB5\x2F\xFD"sv, "Zstandard data", kUnpack},
    {"\xFD"
     "7zXZ\0"sv,
     "xz data", kUnpack},
    {"\x04\x22\x4D\x18"sv, "LZ4 data", kUnpack},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7-Zip archive", kUnpack},
    {"%PDF-"sv, "a PDF", "extract its text first"},
    {"PAR1"sv, "a Parquet table", "write its texts to files first"},
    {"\xFF\xFE\0\0"sv, "UTF-32", kConvert},
    {"\0\0\xFE\xFF"sv, "UTF-32", kConvert},
    {"\xFF\xFE"sv, "UTF-16", kConvert},
    {"\xFE\xFF"sv, "UTF-16", kConvert},
};

bool is_bzip2(std::string_view bytes) {
  return bytes.starts_with("BZh") && bytes.size() > 10 && bytes.substr(4, 6) == "1AY&SY";
}

Error no_text(const std::string& found, const std::string& advice) {
  return {ErrorCode::kInvalidData, "found " + found + ", wanted text in UTF-8; " + advice +
                                       ", or leave it out by --include"};
}

}  // namespace

Status TextCheck::add(std::string_view piece) {
  if (bytes_ == 0) {
    for (const Beginning& beginning : kBeginnings) {
      if (piece.starts_with(beginning.bytes)) return no_text(beginning.found, beginning.advice);
    }
    if (is_bzip2(piece)) return no_text("bzip2 data", kUnpack);
    if (const auto pointer = text::pointer_file(piece)) {
      return no_text(std::string(pointer->found), std::string(pointer->advice));
    }
  }
  const size_t zero = piece.find('\0');
  if (zero != std::string_view::npos) {
    return no_text("a zero byte at " + std::to_string(bytes_ + static_cast<int64_t>(zero)),
                   "text has none, unless it is UTF-16, which iconv converts");
  }
  bytes_ += static_cast<int64_t>(piece.size());
  return {};
}

bool is_json_lines(std::string_view beginning) {
  const size_t end = beginning.find('\n');
  if (end == std::string_view::npos || !beginning.starts_with('{')) return false;
  std::string_view first = beginning.substr(0, end);
  while (first.ends_with('\r') || first.ends_with(' '))
    first.remove_suffix(1);
  return first.ends_with('}') && beginning.substr(end + 1).starts_with('{');
}

}  // namespace trainyard::data
