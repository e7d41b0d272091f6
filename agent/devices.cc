#include "agent/devices.h"

#include <cstdint>

#include "common/api/decode.h"
#include "common/io/file.h"

namespace trainyard::agent {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

}  // namespace

api::DeviceKind device_of_engine(const std::filesystem::path& config) {
  const auto text = read_file(config, kMaxConfigBytes);
  const auto engine = text ? api::decode_engine(*text) : text.error();
  return engine ? engine->device : api::DeviceKind::kAuto;
}

}  // namespace trainyard::agent
