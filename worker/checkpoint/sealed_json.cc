#include "worker/checkpoint/sealed_json.h"

#include <span>

#include "common/base/check.h"
#include "common/hash/hash.h"

namespace trainyard::checkpoint {
namespace {

constexpr std::string_view kBefore = ",\n\"checksum\": \"";
constexpr std::string_view kAfter = "\"}\n";
constexpr size_t kDigits = 32;
constexpr size_t kSealBytes = kBefore.size() + kDigits + kAfter.size();

std::string digest_of(std::string_view text) {
  return to_hex(xxh3_128(std::as_bytes(std::span(text.data(), text.size()))));
}

}  // namespace

std::string seal_json(std::string object) {
  TRAINYARD_CHECK(object.size() > 2 && object.front() == '{' && object.back() == '}');
  object.pop_back();
  while (object.back() == '\n')
    object.pop_back();
  const std::string digest = digest_of(object);
  object += kBefore;
  object += digest;
  object += kAfter;
  return object;
}

Result<std::string> check_seal(std::string_view text, std::string_view what) {
  const auto fail = [&](const std::string& why) {
    return Error{ErrorCode::kInvalidData, std::string(what) + ": " + why};
  };
  if (text.size() < kSealBytes + 2) {
    return fail("too short (" + std::to_string(text.size()) + " bytes); the file is cut off");
  }
  const std::string_view body = text.substr(0, text.size() - kSealBytes);
  const std::string_view seal = text.substr(body.size());
  if (seal.substr(0, kBefore.size()) != kBefore ||
      seal.substr(kBefore.size() + kDigits) != kAfter) {
    return fail("does not end with its checksum; the file is cut off or damaged");
  }
  const std::string_view found = seal.substr(kBefore.size(), kDigits);
  const std::string wanted = digest_of(body);
  if (found != wanted) {
    return fail("checksum " + std::string(found) + " but the content hashes to " + wanted +
                "; the file is damaged");
  }
  return wanted;
}

}  // namespace trainyard::checkpoint
