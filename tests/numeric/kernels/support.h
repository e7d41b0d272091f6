#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_kernel_set.h"
#include "kernels/reference/reference.h"

namespace trainyard::kernels::test {

/// A kernel set with its scratch, which is poisoned so that reading what was never written shows.
class Kernels {
 public:
  Kernels(Isa isa, int threads) : set_(*make_cpu_kernel_set(isa, threads)) {
    const auto bytes = static_cast<size_t>(set_->scratch_bytes());
    scratch_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    std::memset(scratch_.get(), 0xFF, bytes);  // NaN in every float type
    set_->set_scratch({scratch_.get(), bytes});
  }
  KernelSet* operator->() { return set_.get(); }
  KernelSet& operator*() { return *set_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  std::unique_ptr<KernelSet> set_;
  std::unique_ptr<std::byte, Free> scratch_;
};

inline uint16_t to_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((u >> 16U) | 0x40U);
  return static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16U) & 1U)) >> 16U);
}
inline float from_bf16(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16U); }

/// Values in either type, and as the doubles they exactly are.
struct Tensor {
  DType type = DType::kFloat32;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;

  Tensor() = default;
  Tensor(DType element_type, const std::vector<float>& values) : type(element_type) {
    if (type == DType::kFloat32) {
      f32 = values;
    } else {
      for (const float x : values)
        bf16.push_back(to_bf16(x));
    }
  }
  Tensor(DType element_type, int64_t count)
      : Tensor(element_type, std::vector<float>(static_cast<size_t>(count), 0.0F)) {}

  void* data() { return type == DType::kFloat32 ? static_cast<void*>(f32.data()) : bf16.data(); }
  const void* data() const {
    return type == DType::kFloat32 ? static_cast<const void*>(f32.data()) : bf16.data();
  }
  reference::Vector doubles() const {
    reference::Vector d(f32.begin(), f32.end());
    for (const uint16_t h : bf16)
      d.push_back(from_bf16(h));
    return d;
  }
};

inline std::vector<float> normal(int64_t count, uint32_t seed, float deviation = 1.0F) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> distribution(0.0F, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values)
    x = distribution(engine);
  return values;
}

inline reference::Vector doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }
inline reference::Vector doubles(const std::vector<int64_t>& x, int quantum_log2) {
  reference::Vector d;
  for (const int64_t v : x)
    d.push_back(std::ldexp(static_cast<double>(v), -quantum_log2));
  return d;
}

/// |actual - expected| <= absolute + relative |expected|, element by element; names the worst.
inline testing::AssertionResult near(const reference::Vector& actual,
                                     const reference::Vector& expected, double absolute,
                                     double relative) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, not " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (!(error <= absolute + relative * std::abs(expected[i]))) {
      return testing::AssertionFailure() << "element " << i << ": " << actual[i] << ", expected "
                                         << expected[i] << ", error " << error;
    }
  }
  return testing::AssertionSuccess();
}

/// |actual - expected| <= relative * magnitude, element by element; names the worst of them.
inline testing::AssertionResult within(const reference::Vector& actual,
                                       const reference::Vector& expected,
                                       const reference::Vector& magnitudes, double relative) {
  if (actual.size() != expected.size() || actual.size() != magnitudes.size()) {
    return testing::AssertionFailure() << actual.size() << " elements, not " << expected.size();
  }
  size_t worst = actual.size();
  double most = relative;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (error <= most * magnitudes[i]) continue;
    worst = i;
    if (!(error > 0 && magnitudes[i] > 0)) break;  // NaN, or where 0 must be
    most = error / magnitudes[i];
  }
  if (worst == actual.size()) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "element " << worst << ": " << actual[worst] << ", expected " << expected[worst]
         << ", of terms of " << magnitudes[worst] << " in all: off by " << most << " of them";
}

/// Ends of `pieces` uneven chains over `length`: prime-ish cuts, the last at length.
inline std::vector<int64_t> uneven_ends(int64_t length, int64_t pieces) {
  std::vector<int64_t> ends;
  for (int64_t i = 1; i < pieces; ++i) {
    const int64_t end = std::min(length, i * length / pieces + i % 3);
    if (ends.empty() || end > ends.back()) ends.push_back(end);
  }
  if (ends.empty() || ends.back() < length) ends.push_back(length);
  return ends;
}

/// Sequences of these lengths, one after the other, of ordinals `ordinal`, + 1, ...
inline std::vector<Sequence> sequences_of(const std::vector<int64_t>& lengths, int64_t ordinal = 0,
                                          int64_t position = 0) {
  std::vector<Sequence> sequences;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    sequences.push_back({begin, length, ordinal++, position});
    begin += length;
  }
  return sequences;
}
/// All of them.
inline Rows rows_of(const std::vector<Sequence>& sequences) {
  const Sequence& last = sequences.back();
  return {.count = last.begin + last.length, .sequences = sequences};
}
/// Sequences with these ends: a grain each.
inline std::vector<Sequence> sequences_up_to(const std::vector<int64_t>& ends) {
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < ends.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : ends[i - 1];
    sequences.push_back({.begin = begin, .length = ends[i] - begin});
  }
  return sequences;
}

/// Tests over every instruction set of this processor and some thread counts.
struct Variant {
  Isa isa;
  int threads;
};
inline std::string name_of_variant(const testing::TestParamInfo<Variant>& info) {
  return std::string(name_of(info.param.isa)) + "_" + std::to_string(info.param.threads);
}
class VariantTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    kernels_ = std::make_unique<Kernels>(GetParam().isa, GetParam().threads);
  }
  KernelSet& kernels() { return **kernels_; }

 private:
  std::unique_ptr<Kernels> kernels_;
};
/// Those of `variants` that this processor can run.
inline std::vector<Variant> runnable(std::vector<Variant> variants) {
  std::erase_if(variants, [](const Variant& variant) { return !is_available(variant.isa); });
  return variants;
}
inline auto one_thread_each() {
  return testing::ValuesIn(runnable({{Isa::kGeneric, 1},
                                     {Isa::kAvx2, 1},
                                     {Isa::kAvx512, 1},
                                     {Isa::kAvx512Bf16, 1},
                                     {Isa::kAmx, 1}}));
}

}  // namespace trainyard::kernels::test
