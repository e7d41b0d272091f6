#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace trainyard::testing_support {

/// A manifest's `engine`: GPT-2 of one layer and 8,000 parameters over the bytes of a text, trained
/// on sequences of 16. A step takes a millisecond.
inline nlohmann::json tiny_engine(const std::string& tokens, int64_t steps) {
  return {{"model",
           {{"family", "GPT2"},
            {"layers", 1},
            {"hidden", 16},
            {"heads", 2},
            {"vocab", 257},
            {"maxPositions", 16}}},
          {"data", {{"tokens", nlohmann::json::array({tokens})}, {"sequenceLength", 16}}},
          {"batch", {{"globalSequences", 12}, {"microSequences", 3}}},
          {"steps", steps}};
}

}  // namespace trainyard::testing_support
