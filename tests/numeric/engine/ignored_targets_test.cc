// A step of which some targets do not count: its gradient is that of the mean over those that do,
// as a GPT-2 of kernels/reference in double has it.

#include "tests/numeric/engine/ignored_targets.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/random/philox.h"
#include "kernels/reference/reference.h"
#include "worker/job/engine_state.h"

namespace trainyard {
namespace {

using kernels::reference::Vector;
using Tensors = std::map<std::string, Vector>;

/// Three targets of ten.
bool is_ignored(int64_t ordinal, int64_t position) {
  return mix64(static_cast<uint64_t>(1000 * ordinal + position)) % 10 < 3;
}

Vector sum(Vector a, const Vector& b) {
  for (size_t i = 0; i < a.size(); ++i)
    a[i] += b[i % b.size()];  // a bias is added to every row
  return a;
}

/// The loss of one global batch summed over the targets that count, and its gradient.
class Reference {
 public:
  Reference(const api::EngineSpec& spec, Tensors weights)
      : model_(spec.model), length_(spec.data.sequence_length), weights_(std::move(weights)) {}

  double loss = 0;
  int64_t targets = 0;
  Tensors gradient;

  void run(const std::vector<int32_t>& tokens, const std::vector<int32_t>& wanted) {
    rows_ = std::ssize(tokens);
    const int64_t h = model_.hidden;
    Vector x = kernels::reference::embedding(h, length_, 0, tokens, at("wte"), at("wpe"));
    std::vector<Block> blocks;
    for (int64_t layer = 0; layer < model_.layers; ++layer)
      x = forward(blocks.emplace_back(), "h." + std::to_string(layer) + ".", x);
    const Vector last = norm("ln_f", x);
    const int64_t vocab = std::ssize(at("wte")) / h;
    const auto result = kernels::reference::cross_entropy(
        rows_, model_.vocab, vocab,
        kernels::reference::gemm(rows_, vocab, h, last, false, at("wte"), true), wanted);
    for (size_t row = 0; row < wanted.size(); ++row) {
      targets += wanted[row] >= 0 ? 1 : 0;
      loss += result.losses[row];
    }
    Vector dx = norm_backward(
        "ln_f", x,
        kernels::reference::gemm(rows_, h, vocab, result.d_logits, false, at("wte"), false));
    for (int64_t layer = model_.layers - 1; layer >= 0; --layer)
      dx = backward(blocks[static_cast<size_t>(layer)], "h." + std::to_string(layer) + ".", dx);
    auto tables = kernels::reference::embedding_backward(h, length_, 0, tokens, dx, vocab,
                                                         model_.max_positions);
    gradient["wpe"] = tables.d_wpe;
    gradient["wte"] =
        sum(std::move(tables.d_wte),
            kernels::reference::gemm(vocab, h, rows_, result.d_logits, true, last, false));
  }

 private:
  struct Block {
    Vector in, normed, qkv, heads, middle, normed_middle, inner;
  };
  const Vector& at(const std::string& name) const { return weights_.at(name); }

  Vector norm(const std::string& name, const Vector& x) const {
    return kernels::reference::layer_norm(rows_, model_.hidden, x, at(name + ".weight"),
                                          at(name + ".bias"), 1e-5)
        .y;
  }
  Vector norm_backward(const std::string& name, const Vector& x, const Vector& dy) {
    auto result = kernels::reference::layer_norm_backward(rows_, model_.hidden, dy, x,
                                                          at(name + ".weight"), 1e-5);
    gradient[name + ".weight"] = result.dgamma;
    gradient[name + ".bias"] = result.dbeta;
    return result.dx;
  }
  Vector linear(const std::string& name, const Vector& x) const {
    const Vector& bias = at(name + ".bias");
    const int64_t outputs = std::ssize(bias);
    return sum(kernels::reference::gemm(rows_, outputs, std::ssize(x) / rows_, x, false,
                                        at(name + ".weight"), true),
               bias);
  }
  Vector linear_backward(const std::string& name, const Vector& x, const Vector& dy) {
    const int64_t outputs = std::ssize(dy) / rows_;
    const int64_t inputs = std::ssize(x) / rows_;
    gradient[name + ".bias"] = kernels::reference::column_sums(rows_, outputs, dy);
    gradient[name + ".weight"] =
        kernels::reference::gemm(outputs, inputs, rows_, dy, true, x, false);
    return kernels::reference::gemm(rows_, inputs, outputs, dy, false, at(name + ".weight"), false);
  }
  /// Of all samples: `step` maps the rows of one from `a` and, where it is not null, `b`.
  template <class Step>
  Vector by_sample(const Vector& a, const Vector& b, const Step& step) const {
    Vector all;
    for (int64_t s = 0; s < rows_ / length_; ++s) {
      const auto part = [&](const Vector& of) {
        const int64_t size = std::ssize(of) / (rows_ / length_);
        return Vector(of.begin() + s * size, of.begin() + (s + 1) * size);
      };
      const Vector one = step(part(a), part(b));
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  kernels::reference::AttentionShape shape() const {
    return {.tokens = length_, .heads = model_.heads, .head_dim = model_.hidden / model_.heads};
  }
  static double one(int64_t, int64_t, int64_t) { return 1; }

  Vector forward(Block& b, const std::string& name, const Vector& x) {
    b.in = x;
    b.normed = norm(name + "ln_1", x);
    b.qkv = linear(name + "attn.c_attn", b.normed);
    b.heads = by_sample(b.qkv, {}, [&](const Vector& qkv, const Vector&) {
      return kernels::reference::attention(shape(), qkv, one).out;
    });
    b.middle = sum(linear(name + "attn.c_proj", b.heads), x);
    b.normed_middle = norm(name + "ln_2", b.middle);
    b.inner = linear(name + "mlp.c_fc", b.normed_middle);
    return sum(linear(name + "mlp.c_proj", active(b.inner)), b.middle);
  }
  static Vector active(Vector x) {
    std::transform(x.begin(), x.end(), x.begin(), kernels::reference::gelu);
    return x;
  }
  Vector backward(const Block& b, const std::string& name, const Vector& dy) {
    Vector d = linear_backward(name + "mlp.c_proj", active(b.inner), dy);
    for (size_t i = 0; i < d.size(); ++i)
      d[i] *= kernels::reference::gelu_derivative(b.inner[i]);
    d = linear_backward(name + "mlp.c_fc", b.normed_middle, d);
    const Vector d_middle = sum(norm_backward(name + "ln_2", b.middle, d), dy);
    d = linear_backward(name + "attn.c_proj", b.heads, d_middle);
    d = by_sample(b.qkv, d, [&](const Vector& qkv, const Vector& d_out) {
      return kernels::reference::attention_backward(shape(), qkv, d_out, one);
    });
    d = linear_backward(name + "attn.c_attn", b.normed, d);
    return sum(norm_backward(name + "ln_1", b.in, d), d_middle);
  }

  const api::ModelSpec& model_;
  const int64_t length_;
  const Tensors weights_;
  int64_t rows_ = 0;
};

struct Outcome {
  engine::StepReport report;
  std::string hash;
  Tensors weights;  ///< before the step; of one rank
  Tensors moments;  ///< after it
};

class IgnoredTargetsTest : public ::testing::Test {
 protected:
  IgnoredTargetsTest() { spec_.model.dropout = 0; }

  /// Runs `rank_main` on each rank of a cell, with a fresh engine.
  void for_each_rank(const matrix::Cell& cell,
                     const std::function<void(int rank, engine::Engine& engine)>& rank_main) {
    testing::for_each_engine(spec_, cell, [&](int rank, engine::Engine& engine) {
      EXPECT_TRUE(engine.initialize());
      rank_main(rank, engine);
    });
  }

  Outcome train(const matrix::Cell& cell) {
    std::vector<Outcome> outcomes(static_cast<size_t>(cell.ranks));
    for_each_rank(cell, [&](int rank, engine::Engine& engine) {
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      engine::States& states = engine.states();
      const auto copy = [&](Tensors& to, const auto& of) {
        for (const int p : engine.name_order()) {
          const std::span<const float> values = of(p);
          to[engine.model().params[static_cast<size_t>(p)].name()] = {values.begin(), values.end()};
        }
      };
      copy(outcome.weights, [&](int p) { return states.master(p); });
      matrix::StreamBatches all = testing::batches_of(engine, stream_);
      testing::IgnoringBatches batches(all, is_ignored);
      const auto report = engine.step(batches);
      ASSERT_TRUE(report) << report.error().message;
      outcome.report = *report;
      copy(outcome.moments, [&](int p) { return states.m(p); });
      outcome.hash = to_hex(engine::EngineState(engine).hash().value());
    });
    return outcomes[0];
  }

  api::EngineSpec spec_ = matrix::prime_spec(api::NumberFormat::kFP32);
  const std::vector<int32_t> stream_ = matrix::make_token_stream(4096, spec_.model.vocab, 99);
};

TEST_F(IgnoredTargetsTest, TheGradientIsThatOfTheMeanOverTheOthers) {
  const Outcome one = train({.micro_sequences = spec_.batch.global_sequences});
  const int64_t length = spec_.data.sequence_length;
  const int64_t rows = spec_.batch.global_sequences * length;
  const std::vector<int32_t> tokens(stream_.begin(), stream_.begin() + rows);
  std::vector<int32_t> targets;
  for (int64_t row = 0; row < rows; ++row) {
    targets.push_back(
        is_ignored(row / length, row % length) ? -1 : stream_[static_cast<size_t>(row + 1)]);
  }
  Reference reference(spec_, one.weights);
  reference.run(tokens, targets);
  const auto counted = static_cast<double>(reference.targets);
  EXPECT_NEAR(counted / static_cast<double>(rows), 0.7, 0.1);
  const double loss = reference.loss / counted;
  EXPECT_NEAR(one.report.loss, loss, 1e-5 * loss);

  double squares = 0;
  for (const auto& [name, values] : reference.gradient) {
    for (const double value : values)
      squares += value / counted * (value / counted);
  }
  const double norm = std::sqrt(squares);
  EXPECT_NEAR(one.report.gradient_norm, norm, 1e-5 * norm);
  const double clip = spec_.optimizer.gradient_clip / (norm + 1e-6);
  ASSERT_LT(clip, 1) << "clipping must be active";
  double difference = 0;
  for (const auto& [name, values] : reference.gradient) {
    const Vector& moments = one.moments.at(name);
    ASSERT_EQ(moments.size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i) {
      const double found = moments[i] / (1 - spec_.optimizer.betas[0]);
      difference += std::pow(found - clip * values[i] / counted, 2);
    }
  }
  EXPECT_LE(std::sqrt(difference), 1e-5 * clip * norm);
}

std::string name_of(const matrix::Cell& cell) {
  return std::to_string(cell.ranks) + " ranks in " + std::to_string(cell.pipeline) +
         " stages, ZeRO " + std::to_string(cell.zero_stage) + ", micro-batches of " +
         std::to_string(cell.micro_sequences);
}

TEST_F(IgnoredTargetsTest, LayoutsDoNotChangeTheBits) {
  const std::vector<matrix::Cell> cells = {
      {.ranks = 1, .micro_sequences = 6},
      {.ranks = 1, .micro_sequences = 3},
      {.ranks = 2, .micro_sequences = 11},
      {.ranks = 3, .micro_sequences = 2},
      {.ranks = 4, .micro_sequences = 1},
      {.ranks = 2, .micro_sequences = 3, .shard = 1, .zero_stage = 0},
      {.ranks = 2, .micro_sequences = 3, .zero_stage = 2},
      {.ranks = 4, .micro_sequences = 2, .shard = 2, .zero_stage = 2},
      {.ranks = 3, .micro_sequences = 2, .zero_stage = 3},
      {.ranks = 2, .micro_sequences = 2, .pipeline = 2},
      {.ranks = 4, .micro_sequences = 3, .shard = 1, .zero_stage = 0, .pipeline = 2},
      {.ranks = 4, .micro_sequences = 2, .zero_stage = 3, .pipeline = 2}};
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    spec_.precision.compute = compute;
    const Outcome one = train({.micro_sequences = 11});
    EXPECT_FALSE(one.report.skipped);
    for (const matrix::Cell& cell : cells) {
      SCOPED_TRACE(name_of(cell));
      const Outcome other = train(cell);
      EXPECT_EQ(other.hash, one.hash);
      EXPECT_EQ(other.report.loss, one.report.loss);
      EXPECT_EQ(other.report.gradient_norm, one.report.gradient_norm);
    }
  }
}

/// What a rank owns of the training state: masters, both moments, and the weights that ops read.
std::vector<std::byte> states_of(engine::Engine& engine) {
  std::vector<std::byte> bytes;
  const auto add = [&](std::span<const std::byte> of) {
    bytes.insert(bytes.end(), of.begin(), of.end());
  };
  engine::States& states = engine.states();
  for (const int p : engine.name_order()) {
    if (states.owned(p).size() == 0) continue;
    for (const std::span<const float> of : {states.master(p), states.m(p), states.v(p)})
      add(std::as_bytes(of));
    add(states.weights().owned(p));
  }
  return bytes;
}

TEST_F(IgnoredTargetsTest, AStepWithoutTargetsChangesNoState) {
  const std::vector<matrix::Cell> cells = {
      {.micro_sequences = 11},
      {.ranks = 2, .micro_sequences = 3, .shard = 1, .zero_stage = 0},
      {.ranks = 2, .micro_sequences = 3, .zero_stage = 2},
      {.ranks = 2, .micro_sequences = 3, .zero_stage = 3},
      {.ranks = 2, .micro_sequences = 3, .pipeline = 2}};
  for (const auto compute : {api::NumberFormat::kFP32, api::NumberFormat::kBF16}) {
    spec_.precision.compute = compute;
    for (const matrix::Cell& cell : cells) {
      SCOPED_TRACE(name_of(cell));
      for_each_rank(cell, [&](int, engine::Engine& engine) {
        matrix::StreamBatches all = testing::batches_of(engine, stream_);
        testing::IgnoringBatches none(all, [](int64_t, int64_t) { return true; });
        testing::IgnoringBatches some(all, is_ignored);
        ASSERT_TRUE(engine.step(some)) << "so that there are moments";
        ASSERT_TRUE(engine.settle());
        const std::vector<std::byte> before = states_of(engine);
        const auto report = engine.step(none);
        ASSERT_TRUE(report) << report.error().message;
        EXPECT_TRUE(report->skipped);
        EXPECT_EQ(report->targets, 0);
        EXPECT_TRUE(std::isnan(report->loss)) << "of none there is no mean";
        EXPECT_EQ(report->gradient_norm, 0);
        ASSERT_TRUE(engine.settle());
        EXPECT_TRUE(states_of(engine) == before);
        EXPECT_EQ(engine.steps_done(), 2) << "the batch is consumed";
        EXPECT_EQ(engine.optimizer().updates(), 1);
        const auto next = engine.step(some);
        ASSERT_TRUE(next) << next.error().message;
        EXPECT_FALSE(next->skipped);
        EXPECT_TRUE(std::isfinite(next->loss));
        EXPECT_EQ(engine.optimizer().updates(), 2);
      });
    }
  }
}

}  // namespace
}  // namespace trainyard
