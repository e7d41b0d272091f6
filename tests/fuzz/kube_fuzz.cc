// Any bytes as what an API server, a proxy before it or a kubeconfig may hold: nothing is accepted
// that is not what it must be, and every refusal says something printable.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "operator/cache/meta.h"
#include "operator/kube/config.h"
#include "operator/kube/json_read.h"
#include "operator/kube/json_text.h"
#include "operator/kube/server_url.h"
#include "operator/kube/watch_event.h"
#include "tests/fuzz/require.h"

namespace {

namespace kube = trainyard::kube;

bool is_printable(const std::string& text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) return false;
  }
  return true;
}

void check_json(std::string_view text) {
  const auto quick = kube::read_json_quickly(text);
  if (!quick) return;
  const nlohmann::json careful = kube::read_json_carefully(text);
  TRAINYARD_REQUIRE(*quick == careful, "the two ways of reading differ");
  TRAINYARD_REQUIRE(kube::to_json_text(*quick) == kube::to_json_text(careful),
                    "the two differ in a type");
}

void check_event(std::string_view line) {
  const auto event = kube::decode_event(line);
  if (!event) {
    TRAINYARD_REQUIRE(event.error().status != 0, "an event is never the lack of an answer");
    TRAINYARD_REQUIRE(is_printable(event.error().message), event.error().message.c_str());
    TRAINYARD_REQUIRE(event.error().causes.size() <= kube::kCausesMax, "too many causes");
    return;
  }
  TRAINYARD_REQUIRE(event->object.is_object(), "an event's object is a mapping");
  const auto again = kube::parse_json_text(kube::to_json_text(event->object));
  TRAINYARD_REQUIRE(again && *again == event->object, "JSON changes on a round trip");
  const auto meta = trainyard::cache::read_meta(event->object);
  TRAINYARD_REQUIRE(!meta || !meta->name.empty(), "an accepted object has a name");
}

void check_answer(std::string_view body) {
  for (const int status : {200, 401, 409, 410, 422, 504}) {
    const kube::ApiError error = kube::decode_error(status, body, {});
    TRAINYARD_REQUIRE(error.status == status, "the status is the answer's own");
    TRAINYARD_REQUIRE(error.reason != kube::Reason::kNoAnswer, "an answer is no lack of one");
    TRAINYARD_REQUIRE(is_printable(error.message), error.message.c_str());
    TRAINYARD_REQUIRE(status != 410 || error.needs_relist(), "410 always leads to a list");
  }
}

void check_kubeconfig(std::string_view text) {
  const auto config = kube::parse_kubeconfig(text, "/nowhere/at/all", "");
  if (!config) {
    TRAINYARD_REQUIRE(!config.error().message.empty(), "a refusal must say why");
    return;
  }
  TRAINYARD_REQUIRE(kube::parse_server_url(config->server).has_value(), config->server.c_str());
  TRAINYARD_REQUIRE(config->client_certificate.empty() == config->client_key.empty(),
                    "half an identity");
  const bool identity = !config->token.empty() || !config->client_certificate.empty();
  TRAINYARD_REQUIRE(!identity || config->server.starts_with("https://"),
                    "an identity over plain http");
}

void check_url(std::string_view text) {
  const auto url = kube::parse_server_url(text);
  if (!url) return;
  const auto again = kube::parse_server_url(url->text());
  TRAINYARD_REQUIRE(again && again->text() == url->text(), url->text().c_str());
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_json(text);
  check_event(text);
  check_answer(text);
  check_kubeconfig(text);
  check_url(text);
  return 0;
}
