#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/random/philox.h"

namespace trainyard::kernels::reference {
namespace {

constexpr double kRootTwoOverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

size_t at(int64_t index) { return static_cast<size_t>(index); }

}  // namespace

Vector gemm(int64_t m, int64_t n, int64_t k, const Vector& a, bool transpose_a, const Vector& b,
            bool transpose_b) {
  Vector c(at(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum +=
            a[at(transpose_a ? l * m + i : i * k + l)] * b[at(transpose_b ? j * k + l : l * n + j)];
      }
      c[at(i * n + j)] = sum;
    }
  }
  return c;
}

LayerNormResult layer_norm(int64_t rows, int64_t width, const Vector& x, const Vector& gamma,
                           const Vector& beta, double epsilon) {
  LayerNormResult result{Vector(at(rows * width)), Vector(at(rows)), Vector(at(rows))};
  for (int64_t row = 0; row < rows; ++row) {
    double mean = 0;
    for (int64_t i = 0; i < width; ++i)
      mean += x[at(row * width + i)];
    mean /= static_cast<double>(width);
    double variance = 0;
    for (int64_t i = 0; i < width; ++i) {
      variance += (x[at(row * width + i)] - mean) * (x[at(row * width + i)] - mean);
    }
    variance /= static_cast<double>(width);
    const double rstd = 1 / std::sqrt(variance + epsilon);
    for (int64_t i = 0; i < width; ++i) {
      result.y[at(row * width + i)] =
          (x[at(row * width + i)] - mean) * rstd * gamma[at(i)] + beta[at(i)];
    }
    result.mean[at(row)] = mean;
    result.rstd[at(row)] = rstd;
  }
  return result;
}

LayerNormGradient layer_norm_backward(int64_t rows, int64_t width, const Vector& dy,
                                      const Vector& x, const Vector& gamma, double epsilon) {
  LayerNormGradient g{Vector(at(rows * width)), Vector(at(width)), Vector(at(width))};
  const LayerNormResult f = layer_norm(rows, width, x, gamma, Vector(at(width)), epsilon);
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    double sum_normal = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double normal = (x[at(row * width + i)] - f.mean[at(row)]) * f.rstd[at(row)];
      const double scaled = dy[at(row * width + i)] * gamma[at(i)];
      sum += scaled;
      sum_normal += scaled * normal;
      g.dgamma[at(i)] += dy[at(row * width + i)] * normal;
      g.dbeta[at(i)] += dy[at(row * width + i)];
    }
    for (int64_t i = 0; i < width; ++i) {
      const double normal = (x[at(row * width + i)] - f.mean[at(row)]) * f.rstd[at(row)];
      const double scaled = dy[at(row * width + i)] * gamma[at(i)];
      g.dx[at(row * width + i)] =
          f.rstd[at(row)] * (scaled - (sum + normal * sum_normal) / static_cast<double>(width));
    }
  }
  return g;
}

namespace {

double rms_rstd(int64_t width, const double* x, double epsilon) {
  double squares = 0;
  for (int64_t i = 0; i < width; ++i)
    squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<double>(width) + epsilon);
}

}  // namespace

Vector rms_norm(int64_t rows, int64_t width, const Vector& x, const Vector& gamma, double epsilon) {
  Vector y(at(rows * width));
  for (int64_t row = 0; row < rows; ++row) {
    const double rstd = rms_rstd(width, x.data() + row * width, epsilon);
    for (int64_t i = 0; i < width; ++i)
      y[at(row * width + i)] = x[at(row * width + i)] * rstd * gamma[at(i)];
  }
  return y;
}

LayerNormGradient rms_norm_backward(int64_t rows, int64_t width, const Vector& dy, const Vector& x,
                                    const Vector& gamma, double epsilon) {
  LayerNormGradient g{Vector(at(rows * width)), Vector(at(width)), {}};
  for (int64_t row = 0; row < rows; ++row) {
    const double rstd = rms_rstd(width, x.data() + row * width, epsilon);
    double sum_normal = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double normal = x[at(row * width + i)] * rstd;
      sum_normal += dy[at(row * width + i)] * gamma[at(i)] * normal;
      g.dgamma[at(i)] += dy[at(row * width + i)] * normal;
    }
    for (int64_t i = 0; i < width; ++i) {
      const double normal = x[at(row * width + i)] * rstd;
      g.dx[at(row * width + i)] = rstd * (dy[at(row * width + i)] * gamma[at(i)] -
                                          normal * sum_normal / static_cast<double>(width));
    }
  }
  return g;
}

Vector column_sums(int64_t rows, int64_t width, const Vector& dy) {
  Vector sums(at(width));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i)
      sums[at(i)] += dy[at(row * width + i)];
  }
  return sums;
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x)));
}

double gelu_derivative(double x) {
  const double t = std::tanh(kRootTwoOverPi * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kRootTwoOverPi * (1 + 3 * kCubic * x * x);
}

Vector swiglu(int64_t rows, int64_t width, const Vector& x) {
  Vector y(at(rows * width));
  for (int64_t i = 0; i < rows * width; ++i) {
    const int64_t gate = i / width * 2 * width + i % width;
    y[at(i)] = x[at(gate)] / (1 + std::exp(-x[at(gate)])) * x[at(gate + width)];
  }
  return y;
}

Vector swiglu_backward(int64_t rows, int64_t width, const Vector& dy, const Vector& x) {
  Vector dx(at(2 * rows * width));
  for (int64_t i = 0; i < rows * width; ++i) {
    const int64_t gate = i / width * 2 * width + i % width;
    const double sigmoid = 1 / (1 + std::exp(-x[at(gate)]));
    const double slope = sigmoid * (1 + x[at(gate)] * (1 - sigmoid));
    dx[at(gate)] = dy[at(i)] * x[at(gate + width)] * slope;
    dx[at(gate + width)] = dy[at(i)] * x[at(gate)] * sigmoid;
  }
  return dx;
}

Vector rope(const Vector& x, int64_t position, double theta, double direction) {
  Vector y(x.size());
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    const double exponent = -2 * static_cast<double>(i) / static_cast<double>(x.size());
    const double angle = direction * static_cast<double>(position) * std::pow(theta, exponent);
    y[i] = x[i] * std::cos(angle) - x[i + half] * std::sin(angle);
    y[i + half] = x[i + half] * std::cos(angle) + x[i] * std::sin(angle);
  }
  return y;
}

double dropout_factor(const DropoutKey& key, int64_t sample, uint32_t feature, uint32_t c1,
                      uint32_t c2) {
  if (key.rate == 0) return 1;
  const auto ordinal = static_cast<uint64_t>(sample);
  const uint64_t mixed = mix64(mix64(key.seed ^ mix64(key.op)) ^ (ordinal >> 32U));
  const auto words =
      philox4x32({feature / 4, c1, c2, static_cast<uint32_t>(ordinal)},
                 {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32U)});
  const auto threshold = static_cast<uint32_t>(static_cast<double>(key.rate) * 4294967296.0);
  return words[feature % 4] >= threshold ? 1 / (1 - static_cast<double>(key.rate)) : 0;
}

Vector embedding(int64_t width, int64_t tokens_per_sample, int64_t position_offset,
                 const std::vector<int32_t>& tokens, const Vector& wte, const Vector& wpe) {
  Vector y(tokens.size() * at(width));
  for (size_t row = 0; row < tokens.size(); ++row) {
    const int64_t position = position_offset + static_cast<int64_t>(row) % tokens_per_sample;
    for (int64_t i = 0; i < width; ++i) {
      y[row * at(width) + at(i)] = wte[at(tokens[row] * width + i)] + wpe[at(position * width + i)];
    }
  }
  return y;
}

EmbeddingGradient embedding_backward(int64_t width, int64_t tokens_per_sample,
                                     int64_t position_offset, const std::vector<int32_t>& tokens,
                                     const Vector& dy, int64_t vocab, int64_t positions) {
  EmbeddingGradient g{Vector(at(vocab * width)), Vector(at(positions * width))};
  for (size_t row = 0; row < tokens.size(); ++row) {
    const int64_t position = position_offset + static_cast<int64_t>(row) % tokens_per_sample;
    for (int64_t i = 0; i < width; ++i) {
      g.d_wte[at(tokens[row] * width + i)] += dy[row * at(width) + at(i)];
      g.d_wpe[at(position * width + i)] += dy[row * at(width) + at(i)];
    }
  }
  return g;
}

namespace {

/// Indices into qkv, and the probabilities of one head: [T, T], 0 above the diagonal.
struct AttentionHead {
  const AttentionShape& shape;
  int64_t head;

  size_t qkv(int64_t part, int64_t token, int64_t d) const {
    const int64_t kv_heads = shape.kv_heads == 0 ? shape.heads : shape.kv_heads;
    const int64_t index =
        part == 0 ? head : shape.heads + (part - 1) * kv_heads + head / (shape.heads / kv_heads);
    return at((token * (shape.heads + 2 * kv_heads) + index) * shape.head_dim + d);
  }
  /// Query i sees keys [first_key(i), keys(i)).
  int64_t keys(int64_t i) const { return shape.causal ? i + 1 : shape.tokens; }
  int64_t first_key(int64_t i) const {
    return shape.window > 0 ? std::max<int64_t>(i - shape.window + 1, 0) : 0;
  }
  size_t out(int64_t token, int64_t d) const {
    return at((token * shape.heads + head) * shape.head_dim + d);
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(shape.head_dim)); }

  Vector probabilities(const Vector& x, Vector* lse) const {
    Vector p(at(shape.tokens * shape.tokens));
    for (int64_t i = 0; i < shape.tokens; ++i) {
      Vector scores(at(keys(i)), -std::numeric_limits<double>::infinity());
      double top = -std::numeric_limits<double>::infinity();
      for (int64_t j = first_key(i); j < keys(i); ++j) {
        scores[at(j)] = 0;
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          scores[at(j)] += x[qkv(0, i, d)] * x[qkv(1, j, d)];
        }
        scores[at(j)] *= scale();
        top = std::max(top, scores[at(j)]);
      }
      double sum = 0;
      for (const double s : scores)
        sum += std::exp(s - top);
      for (int64_t j = first_key(i); j < keys(i); ++j) {
        p[at(i * shape.tokens + j)] = std::exp(scores[at(j)] - top) / sum;
      }
      if (lse != nullptr) (*lse)[at(head * shape.tokens + i)] = top + std::log(sum);
    }
    return p;
  }
};

}  // namespace

AttentionResult attention(const AttentionShape& shape, const Vector& qkv,
                          const AttentionFactor& factor) {
  AttentionResult result{Vector(at(shape.tokens * shape.heads * shape.head_dim)),
                         Vector(at(shape.heads * shape.tokens))};
  for (int64_t head = 0; head < shape.heads; ++head) {
    const AttentionHead h{shape, head};
    const Vector p = h.probabilities(qkv, &result.lse);
    for (int64_t i = 0; i < shape.tokens; ++i) {
      for (int64_t j = h.first_key(i); j < h.keys(i); ++j) {
        const double weight = p[at(i * shape.tokens + j)] * factor(head, i, j);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          result.out[h.out(i, d)] += weight * qkv[h.qkv(2, j, d)];
        }
      }
    }
  }
  return result;
}

Vector attention_backward(const AttentionShape& shape, const Vector& qkv, const Vector& d_out,
                          const AttentionFactor& factor) {
  Vector d_qkv(qkv.size());
  for (int64_t head = 0; head < shape.heads; ++head) {
    const AttentionHead h{shape, head};
    const Vector p = h.probabilities(qkv, nullptr);
    for (int64_t i = 0; i < shape.tokens; ++i) {
      Vector d_p(at(h.keys(i)));
      double weighted = 0;
      for (int64_t j = h.first_key(i); j < h.keys(i); ++j) {
        const double f = factor(head, i, j);
        const double probability = p[at(i * shape.tokens + j)];
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          d_p[at(j)] += d_out[h.out(i, d)] * qkv[h.qkv(2, j, d)] * f;
          d_qkv[h.qkv(2, j, d)] += probability * f * d_out[h.out(i, d)];
        }
        weighted += probability * d_p[at(j)];
      }
      for (int64_t j = h.first_key(i); j < h.keys(i); ++j) {
        const double d_score = p[at(i * shape.tokens + j)] * (d_p[at(j)] - weighted) * h.scale();
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          d_qkv[h.qkv(0, i, d)] += d_score * qkv[h.qkv(1, j, d)];
          d_qkv[h.qkv(1, j, d)] += d_score * qkv[h.qkv(0, i, d)];
        }
      }
    }
  }
  return d_qkv;
}

AttentionMagnitudes attention_magnitudes(const AttentionShape& shape, const Vector& qkv,
                                         const Vector& d_out, const AttentionFactor& factor) {
  AttentionMagnitudes sums{Vector(d_out.size()), Vector(qkv.size())};
  for (int64_t head = 0; head < shape.heads; ++head) {
    const AttentionHead h{shape, head};
    const Vector p = h.probabilities(qkv, nullptr);
    for (int64_t i = 0; i < shape.tokens; ++i) {
      Vector d_p(at(h.keys(i)));
      double weighted = 0;
      for (int64_t j = h.first_key(i); j < h.keys(i); ++j) {
        const double f = factor(head, i, j);
        const double probability = p[at(i * shape.tokens + j)];
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          const double value = std::abs(qkv[h.qkv(2, j, d)]);
          const double gradient = std::abs(d_out[h.out(i, d)]);
          sums.out[h.out(i, d)] += probability * f * value;
          d_p[at(j)] += gradient * value * f;
          sums.d_qkv[h.qkv(2, j, d)] += probability * f * gradient;
        }
        weighted += probability * d_p[at(j)];
      }
      for (int64_t j = h.first_key(i); j < h.keys(i); ++j) {
        const double d_score = p[at(i * shape.tokens + j)] * (d_p[at(j)] + weighted) * h.scale();
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          sums.d_qkv[h.qkv(0, i, d)] += d_score * std::abs(qkv[h.qkv(1, j, d)]);
          sums.d_qkv[h.qkv(1, j, d)] += d_score * std::abs(qkv[h.qkv(0, i, d)]);
        }
      }
    }
  }
  return sums;
}

CrossEntropyResult cross_entropy(int64_t rows, int64_t vocab, int64_t padded_vocab,
                                 const Vector& logits, const std::vector<int32_t>& targets) {
  CrossEntropyResult result{Vector(at(rows)), Vector(at(rows * padded_vocab))};
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t target = targets[at(row)];
    if (target < 0) continue;
    const double* x = logits.data() + row * padded_vocab;
    double top = x[0];
    for (int64_t i = 1; i < vocab; ++i)
      top = std::max(top, x[i]);
    double sum = 0;
    for (int64_t i = 0; i < vocab; ++i)
      sum += std::exp(x[i] - top);
    result.losses[at(row)] = std::log(sum) + top - x[target];
    for (int64_t i = 0; i < vocab; ++i) {
      result.d_logits[at(row * padded_vocab + i)] =
          std::exp(x[i] - top) / sum - (i == target ? 1 : 0);
    }
  }
  return result;
}

AdamWState adamw(const AdamW& hyper, const OptimizerScalars& scalars, AdamWState state,
                 const Vector& gradient) {
  if (scalars.skip != 0) return state;
  const double beta1 = hyper.beta1;
  const double beta2 = hyper.beta2;
  for (size_t i = 0; i < gradient.size(); ++i) {
    const double g = gradient[i] * static_cast<double>(scalars.clip_scale);
    double& p = state.parameter[i];
    state.m[i] = beta1 * state.m[i] + (1 - beta1) * g;
    state.v[i] = beta2 * state.v[i] + (1 - beta2) * g * g;
    const double update = state.m[i] * static_cast<double>(scalars.bias_correction1) /
                          (std::sqrt(state.v[i] * static_cast<double>(scalars.bias_correction2)) +
                           static_cast<double>(hyper.epsilon));
    const double rate = scalars.learning_rate;
    p = p * (1 - rate * static_cast<double>(hyper.weight_decay)) - rate * update;
  }
  return state;
}

}  // namespace trainyard::kernels::reference
