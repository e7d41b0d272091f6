#include "cli/numerics_view.h"

#include "common/api/enum_names.h"
#include "common/api/numerics.h"

namespace trainyard::cli {

namespace {

/// Those of CPUs, where the device is not decided.
api::NumericsSpec shown(const api::EngineSpec& spec) {
  api::NumericsSpec numerics = spec.numerics;
  if (spec.device == api::DeviceKind::kAuto) numerics.grain_sequences = 0;
  return numerics;
}

}  // namespace

std::string numerics_text(const api::EngineSpec& spec, bool has_read_start) {
  const bool continues = spec.start_from && spec.start_from->what == api::StartWhat::kState;
  std::string text = "numerics of a new run";
  if (spec.device == api::DeviceKind::kAuto) text += " on CPUs";
  if (continues && has_read_start) text += ", which goes on from startFrom";
  text += ": " + api::describe(shown(spec));
  if (continues && !has_read_start) text += ", unless the checkpoint of startFrom has others";
  return text;
}

void write_numerics(text::JsonWriter& json, const api::EngineSpec& spec) {
  const api::NumericsSpec numerics = shown(spec);
  json.key("numerics");
  json.begin_object();
  json.key("mode");
  json.string(api::name_of(numerics.mode));
  for (const auto& [field, value] : api::values_of(numerics)) {
    json.key(field);
    json.integer(value);
  }
  json.end_object();
}

}  // namespace trainyard::cli
