#include <chrono>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "common/api/decode.h"
#include "common/api/decoder.h"
#include "common/api/encode.h"
#include "common/text/document.h"

namespace trainyard::api {
namespace {

/// The visitor that fills structs with values of every kind, whatever their meaning.
class Randomizer {
 public:
  explicit Randomizer(uint64_t seed) : engine_(seed) {}

  template <class M>
  void operator()(const Field& field, M& member) {
    fill(field, member);
  }
  void constant(const Field&, std::string_view) {}

 private:
  template <class M>
  void fill(const Field& field, M& out) {
    if constexpr (IsOptional<M>::value) {
      if (pick(2) == 0) fill(field, out.emplace());
    } else if constexpr (IsVector<M>::value) {
      const int64_t count = pick(4);
      for (int64_t i = 0; i < count; ++i)
        fill(field, out.emplace_back());
    } else if constexpr (std::same_as<M, bool>) {
      out = pick(2) == 0;
    } else if constexpr (std::same_as<M, int64_t>) {
      out = any_integer();
    } else if constexpr (std::same_as<M, std::chrono::seconds>) {
      out = std::chrono::seconds(any_integer());
    } else if constexpr (std::same_as<M, std::chrono::milliseconds>) {
      out = std::chrono::milliseconds(any_integer());
    } else if constexpr (std::same_as<M, double>) {
      out = any_double();
    } else if constexpr (std::same_as<M, std::array<double, 2>>) {
      out = {any_double(), any_double()};
    } else if constexpr (std::same_as<M, std::string>) {
      out = any_text();
    } else if constexpr (std::same_as<M, Time>) {
      out = Time(std::chrono::nanoseconds(pick(int64_t{9'000'000'000'000'000'000})));
    } else if constexpr (std::same_as<M, std::map<std::string, std::string>>) {
      for (int64_t i = pick(3); i > 0; --i)
        out[any_text()] = any_text();
    } else if constexpr (std::same_as<M, PodTemplate>) {
      out.json = "{\"spec\":{\"containers\":[{\"name\":\"trainer\",\"tty\":true}]}}";
      out.containers = {{.name = "trainer"}};
    } else if constexpr (requires { out.unknown_word(); }) {
      if (pick(4) == 0) {
        out = M::unknown("OfALaterVersion");
      } else {
        auto value = out.value().value();
        fill(field, value);
        out = value;
      }
    } else if constexpr (ApiEnum<M>) {
      const auto& names = EnumTable<M>::kNames;
      out = names[static_cast<size_t>(pick(static_cast<int64_t>(names.size())))].value;
    } else {
      visit_fields(*this, out);
    }
  }

  int64_t pick(int64_t below) {
    return std::uniform_int_distribution<int64_t>(0, below - 1)(engine_);
  }

  int64_t any_integer() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    switch (pick(4)) {
      case 0:
        return 1 + pick(10);
      case 1:
        return kMost;
      case 2:
        return std::numeric_limits<int64_t>::min();
      default:
        return 1 + pick(kMost - 1);
    }
  }

  double any_double() {
    while (true) {
      const auto bits = static_cast<uint64_t>(engine_());
      const double value =
          pick(3) == 0 ? 0.1 * static_cast<double>(pick(100)) + 0.1 : std::bit_cast<double>(bits);
      if (std::isnormal(value)) return value;
    }
  }

  /// Never empty: empty text is left out, and then absent where the field is required.
  std::string any_text() {
    static const std::string kPieces[] = {"a", "yes", "0777", "\"", "\\", "\n",        "\t", "é",
                                          "💡", " ",   "null", "{",  ": ", "# not\x01", "-",  "~"};
    std::string text;
    for (int64_t i = pick(5); i >= 0; --i)
      text += kPieces[pick(std::ssize(kPieces))];
    return text;
  }

  std::mt19937_64 engine_;
};

/// Decodes types only: random values mean nothing, so the rules are left out.
template <class T>
T decode_types(const std::string& json) {
  const text::Document document = text::parse_json(json);
  EXPECT_TRUE(document.complete);
  for (const text::Problem& problem : document.problems) {
    ADD_FAILURE() << problem.path << ": " << problem.found << ", wanted " << problem.wanted;
  }
  FaultList faults("random");
  Decoder decoder(faults, UnknownKeys::kRefuse);
  T out;
  decoder.decode(Field{.name = {}, .description = {}}, document.root, "", out);
  EXPECT_EQ(error_of(faults.take()).message, "");
  return out;
}

constexpr uint64_t kSeeds = 300;

TEST(RoundTripTest, RandomStatusComesBackEqual) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TrainingJobStatus status;
    Randomizer randomizer(seed);
    visit_fields(randomizer, status);
    const Result<TrainingJobStatus> back = decode_status(encode_status(status));
    ASSERT_TRUE(back.has_value()) << "seed " << seed << ": " << back.error().message;
    EXPECT_EQ(*back, status) << "seed " << seed;
  }
}

TEST(RoundTripTest, RandomSpecComesBackEqual) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    TrainingJobSpec spec;
    Randomizer randomizer(seed);
    visit_fields(randomizer, spec);
    if (spec.engine) spec.engine->model.preset.clear();  // random names are not presets
    for (FailureRule& rule : spec.failure_policy.rules) {
      // An empty list of codes is left out and then missed: it is refused before anything encodes
      // it.
      if (rule.on_exit_codes) rule.on_exit_codes->values.push_back(1);
    }
    if (spec.engine) spec.engine->data.tokens.emplace_back("a");
    EXPECT_EQ(decode_types<TrainingJobSpec>(encode_spec(spec)), spec) << "seed " << seed;
    EXPECT_EQ(decode_types<TrainingJobSpec>(encode_spec(spec, JsonStyle::kIndented)), spec);
  }
}

TEST(RoundTripTest, DefaultsComeBackEqual) {
  EXPECT_EQ(decode_status(encode_status({})).value(), TrainingJobStatus{});
  EXPECT_EQ(decode_checkpoint_policy(encode_checkpoint_policy({})).value(), CheckpointPolicy{});
  EXPECT_EQ(decode_types<TrainingJobSpec>(encode_spec({})), TrainingJobSpec{});
}

TEST(RoundTripTest, EngineFileIsWhatTheWorkerReads) {
  EngineSpec engine;
  ASSERT_TRUE(apply_preset("gpt2-124m", engine.model));
  derive_defaults(engine);
  engine.model.dropout = 0.1;
  engine.data.tokens = {"/data/a.tokens"};
  engine.data.sequence_length = 100;
  engine.batch = {.global_sequences = 7, .micro_sequences = 2};
  engine.steps = 30;
  const Result<EngineSpec> back = decode_engine(encode_engine(engine));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, engine);
}

TEST(RoundTripTest, ResolvedImportComesBackEqual) {
  EngineSpec engine;
  engine.model.import_path = "/hf/gpt2";
  engine.data.tokens = {"/data/a.tokens"};
  engine.batch.global_sequences = 1;
  engine.steps = 1;
  EXPECT_EQ(decode_engine(encode_engine(engine)).value(), engine);  // shape still unknown
  engine.model.layers = 12;
  engine.model.hidden = 768;
  engine.model.heads = 12;
  engine.model.kv_heads = 12;
  engine.model.ffn = 3072;
  engine.model.vocab = 50257;
  engine.model.max_positions = 1024;
  engine.data.sequence_length = 512;
  const Result<EngineSpec> back = decode_engine(encode_engine(engine));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(*back, engine);
}

TEST(RoundTripTest, NotFiniteProgressSurvives) {
  TrainingJobStatus status;
  status.progress.emplace().loss = std::numeric_limits<double>::infinity();
  status.progress->tokens_per_second = std::numeric_limits<double>::quiet_NaN();
  const Result<TrainingJobStatus> back = decode_status(encode_status(status));
  ASSERT_TRUE(back.has_value()) << back.error().message;
  EXPECT_EQ(back->progress->loss, status.progress->loss);
  EXPECT_TRUE(std::isnan(*back->progress->tokens_per_second));
}

TEST(EncodeTest, EqualJobsGiveEqualBytesAndFractionsAreText) {
  TrainingJobStatus status;
  status.progress.emplace().loss = 2.31;
  const std::string json = encode_status(status);
  EXPECT_EQ(json, encode_status(status));
  EXPECT_NE(json.find("\"loss\":\"2.31\""), std::string::npos) << json;
  EXPECT_EQ(json.find('\n'), std::string::npos);
}

/// earlier_schema_test.cc compares all that is written with the schema of an earlier build.
TEST(EncodeTest, AFileLacksTheZerosOfLaterFields) {
  EXPECT_EQ(encode_engine({}).find("horizonSteps"), std::string::npos) << "the oldest of them";
  EngineSpec engine;
  engine.numerics.key_block = 64;
  engine.device = DeviceKind::kCpu;
  EXPECT_NE(encode_engine(engine).find("\"keyBlock\":64"), std::string::npos);
  EXPECT_NE(encode_engine(engine).find("\"device\":\"Cpu\""), std::string::npos);
}

}  // namespace
}  // namespace trainyard::api
