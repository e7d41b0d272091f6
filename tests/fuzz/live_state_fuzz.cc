// Any bytes as RUN/live.json and as the body of /metrics: what is accepted is written and read back
// as the same, and shown within the screen.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/top/live_state.h"
#include "cli/top/render.h"
#include "cli/top/scrape.h"
#include "tests/fuzz/require.h"

namespace {

using trainyard::cli::LiveState;
using trainyard::cli::TopFrame;

constexpr trainyard::Time kNow{std::chrono::seconds(1'700'000'000)};

void show(const LiveState& now, const LiveState* before) {
  constexpr int kColumns = 80;
  const TopFrame frame{.now = &now, .before = before, .clock = kNow, .columns = kColumns};
  for (const std::string& line : trainyard::cli::render_top(frame)) {
    TRAINYARD_REQUIRE(line.size() <= kColumns, line.c_str());
    TRAINYARD_REQUIRE(line.find('\x1b') == std::string::npos, "a line that moves the cursor");
  }
  TRAINYARD_REQUIRE(!trainyard::cli::top_json(frame).empty(), "nothing to print");
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the name that libFuzzer calls
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto scraped = trainyard::cli::live_from_metrics(text, kNow);
  if (scraped) show(*scraped, nullptr);
  const auto live = trainyard::cli::decode_live(text);
  if (!live) return 0;
  show(*live, scraped ? &*scraped : nullptr);
  const std::string written = trainyard::cli::encode_live(*live);
  const auto again = trainyard::cli::decode_live(written);
  TRAINYARD_REQUIRE(again, written.c_str());
  TRAINYARD_REQUIRE(trainyard::cli::encode_live(*again) == written, "changes on a round trip");
  return 0;
}
