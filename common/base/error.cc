#include "common/base/error.h"

#include <system_error>

namespace trainyard {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidConfig:
      return "invalid_config";
    case ErrorCode::kInvalidData:
      return "invalid_data";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kDeadline:
      return "deadline";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kConflict:
      return "conflict";
  }
  return "unknown";
}

Error io_error(std::string_view what, int error_number) {
  return {ErrorCode::kIo, std::string(what) + ": " + std::system_category().message(error_number)};
}

}  // namespace trainyard
