#include "worker/model/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "worker/model/recompute.h"

namespace trainyard::engine {
namespace {

/// A processor's products per byte from memory: 280 GF/s and 35 GB/s of one core, as measured
/// (docs/measurements).
constexpr int64_t kFlopsPerByte = 8;
/// Of a parameter in an update: its sum, master and moments read, and all but the sum written.
constexpr int64_t kUpdateBytes = 32;

/// The ends of `stages` stretches of `costs`, none empty, whose dearest costs least.
std::vector<int> balanced(const std::vector<double>& costs, int stages) {
  const auto layers = static_cast<int>(costs.size());
  std::vector<double> before(costs.size() + 1);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // By number of stages and of layers in them: the least that the dearest stage costs, and where
  // the last of them begins.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> least(static_cast<size_t>(stages) + 1,
                                         std::vector<double>(costs.size() + 1, kNever));
  std::vector<std::vector<int>> begins(static_cast<size_t>(stages) + 1,
                                       std::vector<int>(costs.size() + 1));
  least[0][0] = 0;
  for (size_t s = 1; s <= static_cast<size_t>(stages); ++s) {
    for (size_t end = s; end <= costs.size(); ++end) {
      for (size_t begin = s - 1; begin < end; ++begin) {
        if (least[s - 1][begin] == kNever) continue;
        const double dearest = std::max(least[s - 1][begin], before[end] - before[begin]);
        if (dearest >= least[s][end]) continue;
        least[s][end] = dearest;
        begins[s][end] = static_cast<int>(begin);
      }
    }
  }
  std::vector<int> ends = {layers};
  for (auto s = static_cast<size_t>(stages); s > 1; --s)
    ends.push_back(begins[s][static_cast<size_t>(ends.back())]);
  std::reverse(ends.begin(), ends.end());
  return ends;
}

std::string list_of(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers)
    text += (text.empty() ? "[" : ", ") + std::to_string(number);
  return text + "]";
}

/// The ends of stages with these blocks each.
Result<std::vector<int>> given(const std::vector<int64_t>& blocks, int64_t stages, int64_t layers) {
  bool fits = std::ssize(blocks) == stages &&
              std::accumulate(blocks.begin(), blocks.end(), int64_t{0}) == layers;
  for (size_t i = 0; i < blocks.size(); ++i)
    fits = fits && blocks[i] >= (i > 0 && i + 1 < blocks.size() ? 1 : 0);
  if (!fits) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.parallelism.stages: found " + list_of(blocks) + ", wanted " +
                     std::to_string(stages) + " numbers that add up to model.layers (" +
                     std::to_string(layers) + "), 0 only for the first and the last"};
  }
  std::vector<int> ends;
  int64_t end = 1;  // the embedding
  for (const int64_t of_stage : blocks) {
    end += of_stage;
    ends.push_back(static_cast<int>(end));
  }
  ++ends.back();  // the head
  return ends;
}

}  // namespace

std::vector<double> layer_costs(const Model& model, api::Recompute recompute,
                                const OpExtent& sample, int64_t samples) {
  std::vector<double> costs;
  for (const Layer& layer : model.layers) {
    const OpFlops flops = flops_of(model, layer, sample, recompute);
    double cost = static_cast<double>(samples) *
                  static_cast<double>(flops.forward + flops.recompute + flops.backward_input +
                                      flops.backward_weight);
    for (const Node& node : layer.nodes) {
      for (const int param : node.params) {
        cost += static_cast<double>(model.params[static_cast<size_t>(param)].elements() *
                                    kUpdateBytes * kFlopsPerByte);
      }
    }
    costs.push_back(cost);
  }
  return costs;
}

Result<layout::StageMap> cut_stages(const Model& model, const api::ParallelismSpec& parallelism,
                                    const OpExtent& sample, int64_t samples) {
  const int64_t stages = parallelism.pipeline * parallelism.chunks_per_stage;
  const int64_t blocks = std::ssize(model.layers) - 2;  // without embedding and head
  layout::StageMap map{.per_rank = static_cast<int>(parallelism.chunks_per_stage)};
  if (stages > std::ssize(model.layers)) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.parallelism.pipeline: found " + std::to_string(parallelism.pipeline) +
                     " x chunksPerStage " + std::to_string(parallelism.chunks_per_stage) +
                     ", wanted at most " + std::to_string(blocks + 2) +
                     " stages: embedding, head and model.layers (" + std::to_string(blocks) + ")"};
  }
  if (!parallelism.stages.empty()) {
    TRAINYARD_ASSIGN(map.layer_end, given(parallelism.stages, stages, blocks));
    return map;
  }
  map.layer_end = balanced(layer_costs(model, parallelism.recompute, sample, samples),
                           static_cast<int>(stages));
  return map;
}

}  // namespace trainyard::engine
