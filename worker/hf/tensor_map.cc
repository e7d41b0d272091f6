#include "worker/hf/tensor_map.h"

#include <algorithm>

namespace trainyard::hf {
namespace {

// The width of a cache line of floats: each tile is read and written in whole lines.
constexpr int64_t kTile = 16;
// Vocabulary rows are padded to this, so that the padded size does not depend on the layout and
// suits the vector width of every kernel.
constexpr int64_t kVocabMultiple = 64;

}  // namespace

int64_t padded_vocab(int64_t vocab) {
  return (vocab + kVocabMultiple - 1) / kVocabMultiple * kVocabMultiple;
}

std::vector<TensorMapping> gpt2_mappings(const Gpt2Config& config) {
  const int64_t hidden = config.hidden;
  std::vector<TensorMapping> mappings = {{"wte",
                                          {padded_vocab(config.vocab), hidden},
                                          "wte.weight",
                                          {config.vocab, hidden},
                                          Form::kPadded},
                                         {"wpe",
                                          {config.max_positions, hidden},
                                          "wpe.weight",
                                          {config.max_positions, hidden},
                                          Form::kSame}};
  const auto vector = [&](const std::string& name, int64_t size) {
    mappings.push_back({name, {size}, name, {size}, Form::kSame});
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    mappings.push_back(
        {name + ".weight", {out, in}, name + ".weight", {in, out}, Form::kTransposed});
    vector(name + ".bias", out);
  };
  const auto norm = [&](const std::string& name) {
    vector(name + ".weight", hidden);
    vector(name + ".bias", hidden);
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string block = "h." + std::to_string(layer) + ".";
    norm(block + "ln_1");
    linear(block + "attn.c_attn", hidden, 3 * hidden);
    linear(block + "attn.c_proj", hidden, hidden);
    norm(block + "ln_2");
    linear(block + "mlp.c_fc", hidden, config.ffn);
    linear(block + "mlp.c_proj", config.ffn, hidden);
  }
  norm("ln_f");
  std::sort(mappings.begin(), mappings.end(),
            [](const TensorMapping& a, const TensorMapping& b) { return a.name < b.name; });
  return mappings;
}

std::vector<Gpt2Tensor> gpt2_tensors(const Gpt2Config& config) {
  std::vector<Gpt2Tensor> tensors;
  for (TensorMapping& mapping : gpt2_mappings(config)) {
    tensors.push_back({std::move(mapping.name), std::move(mapping.shape)});
  }
  return tensors;
}

void transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t row0 = 0; row0 < rows; row0 += kTile) {
    for (int64_t column0 = 0; column0 < columns; column0 += kTile) {
      const int64_t row1 = std::min(row0 + kTile, rows);
      const int64_t column1 = std::min(column0 + kTile, columns);
      for (int64_t row = row0; row < row1; ++row) {
        for (int64_t column = column0; column < column1; ++column) {
          to[column * rows + row] = from[row * columns + column];
        }
      }
    }
  }
}

}  // namespace trainyard::hf
