#include "common/api/encode.h"

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "common/api/enum_names.h"
#include "common/api/job_fields.h"
#include "common/base/seconds_text.h"
#include "common/text/json_writer.h"
#include "common/text/rfc3339.h"

namespace trainyard::api {
namespace {

constexpr int kIndent = 2;

std::string decimal_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return text::shortest(value);
}

/// The visitor that writes members; what is absent or empty is left out.
class Encoder {
 public:
  explicit Encoder(text::JsonWriter& json) : json_(json) {}

  template <class T>
  void operator()(const Field& field, const T& value) {
    if (field.unwritten_zero && value == T{}) return;
    if (is_absent(field, value)) return;
    json_.key(field.name);
    write(field, value);
  }
  void constant(const Field& field, std::string_view value) {
    json_.key(field.name);
    json_.string(value);
  }

  template <class T>
  void write_struct(const T& value) {
    json_.begin_object();
    visit_fields(*this, value);
    json_.end_object();
  }

 private:
  template <class T>
  static bool is_absent(const Field& field, const T& value) {
    if constexpr (std::same_as<T, int64_t>) {
      return field.zero == Zero::kAbsent && value == 0;
    } else if constexpr (std::same_as<T, TrainingJobStatus>) {
      return value == T{};
    } else if constexpr (requires { value.has_value(); }) {
      return !value.has_value();
    } else if constexpr (requires { value.empty(); }) {
      return value.empty();
    } else {
      return false;
    }
  }

  template <class T>
  void write(const Field& field, const std::optional<T>& value) {
    write(field, *value);
  }
  template <class T>
  void write(const Field& field, const std::vector<T>& values) {
    json_.begin_array();
    for (const T& value : values)
      write(field, value);
    json_.end_array();
  }
  void write(const Field& field, const std::array<double, 2>& values) {
    json_.begin_array();
    for (const double value : values)
      write(field, value);
    json_.end_array();
  }
  void write(const Field&, const std::map<std::string, std::string>& values) {
    json_.begin_object();
    for (const auto& [key, value] : values) {
      json_.key(key);
      json_.string(value);
    }
    json_.end_object();
  }
  void write(const Field&, bool value) { json_.boolean(value); }
  void write(const Field& field, int64_t value) {
    if (value == 0 && !field.zero_word.empty()) return json_.string(field.zero_word);
    json_.integer(value);
  }
  void write(const Field& field, double value) {
    if (field.notation == Notation::kDecimalText) return json_.string(decimal_text(value));
    if (value == 0 && !field.zero_word.empty()) return json_.string(field.zero_word);
    json_.number(value);
  }
  void write(const Field&, const std::string& value) { json_.string(value); }
  void write(const Field& field, std::chrono::seconds value) {
    write(field, int64_t{value.count()});
  }
  void write(const Field&, std::chrono::milliseconds value) {
    json_.string(decimal_seconds(value));
  }
  void write(const Field&, Time value) { json_.string(text::format_time(value)); }
  void write(const Field&, const PodTemplate& value) { json_.raw(value.json); }
  template <class E>
  void write(const Field&, const OpenWord<E>& value) {
    json_.string(name_of(value));
  }
  template <class T>
  void write(const Field&, const T& value) {
    if constexpr (ApiEnum<T>) {
      json_.string(name_of(value));
    } else {
      write_struct(value);
    }
  }

  text::JsonWriter& json_;
};

template <class T>
std::string encode_struct(const T& value, JsonStyle style) {
  text::JsonWriter json(style == JsonStyle::kIndented ? kIndent : 0);
  Encoder(json).write_struct(value);
  return json.take();
}

}  // namespace

std::string encode_training_job(const TrainingJob& job, JsonStyle style) {
  return encode_struct(job, style);
}

std::string encode_spec(const TrainingJobSpec& spec, JsonStyle style) {
  return encode_struct(spec, style);
}

std::string encode_status(const TrainingJobStatus& status, JsonStyle style) {
  return encode_struct(status, style);
}

std::string encode_engine(const EngineSpec& engine, JsonStyle style) {
  return encode_struct(engine, style);
}

std::string encode_checkpoint_policy(const CheckpointPolicy& policy, JsonStyle style) {
  return encode_struct(policy, style);
}

}  // namespace trainyard::api
