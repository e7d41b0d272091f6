#include "operator/render/names.h"

#include <span>

#include "common/api/encode.h"
#include "common/hash/hash.h"

namespace trainyard::render {
namespace {

/// Enough that two engines of one job never share a name, short enough for a host name's length.
constexpr size_t kHashDigits = 10;

}  // namespace

std::string host_name(const std::string& job_name, int64_t node_index) {
  return job_name + "-" + std::to_string(node_index);
}

std::string spare_host_name(const std::string& job_name) { return job_name + "-spare"; }

std::string dns_name(const api::ObjectMeta& job, int64_t node_index) {
  return host_name(job.name, node_index) + "." + service_name(job) + "." + job.namespace_name +
         ".svc";
}

std::string service_name(const api::ObjectMeta& job) { return job.name; }

std::string control_config_name(const api::ObjectMeta& job) { return job.name + "-control"; }

std::string engine_config_name(const api::ObjectMeta& job, const api::TrainingJobSpec& spec) {
  const std::string content = (spec.engine ? api::encode_engine(*spec.engine) : "") + "\n" +
                              api::encode_checkpoint_policy(spec.checkpoint_policy);
  const Hash128 digest = xxh3_128(std::as_bytes(std::span(content)));
  return job.name + "-engine-" + to_hex(digest).substr(0, kHashDigits);
}

}  // namespace trainyard::render
