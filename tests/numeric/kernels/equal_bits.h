#pragma once

#include <functional>

#include "tests/numeric/kernels/support.h"

/// Compares the bits of an operation on every instruction set and for any number of threads, also
/// for inputs that hold denormals, huge values, negative zeros, infinities and NaN.
namespace trainyard::kernels::test {

/// Collects outputs; a NaN is a NaN whatever its payload and sign, which no rule fixes.
class Recorder {
 public:
  void add(const std::vector<float>& x) {
    for (const float v : x) {
      words_.push_back(std::isnan(v) ? 0x7FC00000U : std::bit_cast<uint32_t>(v));
    }
  }
  void add(const std::vector<uint16_t>& x) {
    for (const uint16_t v : x)
      words_.push_back(std::isnan(from_bf16(v)) ? 0x7FC0U : v);
  }
  void add(const Tensor& x) {
    add(x.f32);
    add(x.bf16);
  }
  void add(const std::vector<int64_t>& x) {
    for (const int64_t v : x)
      words_.push_back(static_cast<uint64_t>(v));
  }
  void add(const OverflowFlag& flag) { words_.push_back(flag); }
  const std::vector<uint64_t>& words() const { return words_; }

 private:
  std::vector<uint64_t> words_;
};

enum class Flavour { kPlain, kSpecial };

/// Normal deviates; in the special flavour about one in sixteen is replaced by an extreme.
inline std::vector<float> data(int64_t count, uint32_t seed, Flavour flavour) {
  std::vector<float> x = normal(count, seed);
  if (flavour == Flavour::kPlain) return x;
  const float extremes[] = {0.0F,
                            -0.0F,
                            1e-40F,
                            -3e-39F,
                            1.2e-38F,
                            -1e-30F,
                            1e19F,
                            -3e38F,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  std::mt19937 engine(seed + 1);
  for (float& v : x) {
    // NaN and infinity are rare, or nothing else would be left to compare.
    const uint32_t draw = engine() % 4096;
    if (draw < 256) v = extremes[draw % 7];
    if (draw == 4095) v = extremes[7 + engine() % 3];
  }
  return x;
}

using Case = std::function<void(KernelSet&, Flavour, DType, Recorder&)>;

class EqualBitsTest : public VariantTest {
 protected:
  void expect_same_bits(const Case& record) {
    for (const Flavour flavour : {Flavour::kPlain, Flavour::kSpecial}) {
      for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        Kernels generic(Isa::kGeneric, 1);
        Recorder expected;
        Recorder actual;
        record(*generic, flavour, type, expected);
        record(kernels(), flavour, type, actual);
        ASSERT_EQ(actual.words().size(), expected.words().size());
        for (size_t i = 0; i < actual.words().size(); ++i) {
          ASSERT_EQ(actual.words()[i], expected.words()[i])
              << "word " << i << " of " << actual.words().size() << ", " << name_of(type)
              << (flavour == Flavour::kSpecial ? ", special values" : "");
        }
      }
    }
  }
};

}  // namespace trainyard::kernels::test
