#include "common/api/decoder.h"

#include <limits>

#include "common/text/quantity.h"

namespace trainyard::api {
namespace {

using text::Kind;
using text::Node;

/// Reads all of `text` as a double; the words are those that encode writes.
std::optional<double> decimal_text(std::string_view text) {
  if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") return std::numeric_limits<double>::infinity();
  if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end || !std::isfinite(value)) return std::nullopt;
  return value;
}

/// The container's `resources.limits`; null if it has none.
const Node* limits_of(const Node& container) {
  const Node* resources = container.find("resources");
  return resources == nullptr ? nullptr : resources->find("limits");
}

/// A whole number of what `resources.limits` of a container says; nothing where it says none that
/// can be read, of which check_pod_template speaks.
std::optional<int64_t> limit_of(const Node& container, std::string_view resource) {
  const Node* limits = limits_of(container);
  const Node* limit = limits == nullptr ? nullptr : limits->find(resource);
  if (limit == nullptr) return std::nullopt;
  constexpr int64_t kThousandths = 1000;
  const std::optional<int64_t> amount = text::parse_quantity(limit->string);
  return amount ? std::optional(*amount / kThousandths) : std::nullopt;
}

std::string gpu_part_of(const Node& container) {
  const Node* limits = limits_of(container);
  if (limits == nullptr || limits->kind != Kind::kMapping) return {};
  for (const text::Member& limit : limits->members) {
    const bool is_part = limit.key.starts_with(kGpuPartPrefix);
    if (is_part && limit_of(container, limit.key).value_or(0) > 0) return limit.key;
  }
  return {};
}

/// "-12.345" as -12345; no other notation.
std::optional<int64_t> thousandths(std::string_view text) {
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  std::string_view fraction = text.substr(std::min(point + 1, text.size()));
  const bool well_formed = !digits.empty() && digits.back() != '-' && fraction.size() <= 3 &&
                           fraction.find_first_not_of("0123456789") == std::string_view::npos &&
                           (point == text.size()) == fraction.empty();
  if (!well_formed) return std::nullopt;
  digits += std::string(fraction) + std::string(3 - fraction.size(), '0');
  int64_t value = 0;
  const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (result.ec != std::errc() || result.ptr != digits.data() + digits.size()) return std::nullopt;
  return value;
}

/// A whole number as text that an integer would be read from, if it could hold that many.
bool is_whole(std::string_view text) {
  if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
  return !text.empty() && !text.starts_with('0') &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// What is said of a key that asks for it; no family has such a layer.
constexpr char kNoBatchNorm[] =
    "none: batch means would make the bits depend on how ranks and micro-batches divide the batch; "
    "every family normalizes each token alone (LayerNorm, RMSNorm)";

/// "batchNorm", "sync_batch_norm" and the like.
bool is_batch_norm(std::string_view key) {
  std::string letters;
  for (const char c : key) {
    if (c != '_' && c != '-')
      letters += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  return letters.find("batchnorm") != std::string::npos;
}

/// Where a container's variable has its value from.
EnvSource source_of(const Node& variable) {
  const Node* from = variable.find("valueFrom");
  if (from == nullptr || from->kind == Kind::kNull) return EnvSource::kValue;
  for (const char* key : {"secretKeyRef", "configMapKeyRef"}) {
    const Node* reference = from->find(key);
    const Node* optional = reference == nullptr ? nullptr : reference->find("optional");
    if (optional != nullptr && optional->boolean) return EnvSource::kClusterIfThere;
  }
  return EnvSource::kCluster;
}

}  // namespace

void Decoder::refuse(const Node& node, const std::string& path, std::string wanted) {
  if (node.kind == Kind::kRefused) {
    // The text's reader did not know what the field holds.
    if (text::is_boolean_word(node.string)) faults_.refine(path, std::move(wanted));
    return;
  }
  if (faults_.has(path)) return;
  faults_.add_at(node.line, path, text::describe(node), std::move(wanted));
}

void Decoder::decode_boolean(const Node& node, const std::string& path, bool& out) {
  if (node.kind != Kind::kBool) return refuse(node, path, "true or false");
  out = node.boolean;
}

bool Decoder::is_zero_word(const Field& field, const Node& node) const {
  return !field.zero_word.empty() && node.kind == Kind::kString && node.string == field.zero_word;
}

void Decoder::decode_integer(const Field& field, const Node& node, const std::string& path,
                             int64_t& out) {
  std::string wanted = "a whole number";
  if (!field.zero_word.empty()) wanted += " or " + std::string(field.zero_word);
  if (is_zero_word(field, node)) {
    out = 0;
  } else if (node.kind == Kind::kRefused && is_whole(node.string)) {
    // The text's reader names the range of its own numbers.
    const auto bound = [](const std::optional<double>& given, int64_t widest) {
      return std::to_string(given ? static_cast<int64_t>(*given) : widest);
    };
    faults_.refine(path, wanted + " from " +
                             bound(field.minimum, std::numeric_limits<int64_t>::min()) + " to " +
                             bound(field.maximum, std::numeric_limits<int64_t>::max()));
  } else if (node.kind != Kind::kInteger) {
    refuse(node, path, std::move(wanted));
  } else if (node.integer == 0 && (field.zero == Zero::kAbsent || !field.zero_word.empty())) {
    refuse(node, path, wanted + ", at least 1");
  } else {
    out = node.integer;
  }
}

void Decoder::decode_number(const Field& field, const Node& node, const std::string& path,
                            double& out) {
  if (field.notation == Notation::kDecimalText) {
    const std::optional<double> value =
        node.kind == Kind::kString ? decimal_text(node.string) : std::nullopt;
    if (!value) return refuse(node, path, "a decimal number as text, such as \"2.31\"");
    out = *value;
    return;
  }
  std::string wanted = "a number";
  if (!field.zero_word.empty()) wanted += " or " + std::string(field.zero_word);
  if (is_zero_word(field, node)) {
    out = 0;
  } else if (node.kind != Kind::kNumber && node.kind != Kind::kInteger) {
    refuse(node, path, std::move(wanted));
  } else if (node.number == 0 && !field.zero_word.empty()) {
    refuse(node, path, wanted + ", above 0");
  } else {
    out = node.number;
  }
}

void Decoder::decode_milliseconds(const Node& node, const std::string& path,
                                  std::chrono::milliseconds& out) {
  const std::optional<int64_t> value =
      node.kind == Kind::kString ? thousandths(node.string) : std::nullopt;
  if (!value) return refuse(node, path, "seconds as text with at most three decimals: \"1.25\"");
  out = std::chrono::milliseconds(*value);
}

void Decoder::decode_string(const Node& node, const std::string& path, std::string& out) {
  if (node.kind == Kind::kString) {
    out = node.string;
    return;
  }
  const bool collection = node.kind == Kind::kSequence || node.kind == Kind::kMapping;
  refuse(node, path, collection ? "text" : "text: put it in quotes");
}

void Decoder::decode_time(const Node& node, const std::string& path, Time& out) {
  const auto time = node.kind == Kind::kString ? text::parse_time(node.string) : std::nullopt;
  if (!time) return refuse(node, path, "a time such as 2026-01-31T12:00:00Z");
  out = *time;
}

void Decoder::decode_pair(const Field& field, const Node& node, const std::string& path,
                          std::array<double, 2>& out) {
  if (node.kind != Kind::kSequence) return refuse(node, path, "a list of 2 numbers");
  if (node.items.size() != out.size()) {
    faults_.add_at(node.line, path, "a list of " + std::to_string(node.items.size()),
                   "a list of 2 numbers");
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string item_path = text::join_path(path, i);
    faults_.set_line(item_path, node.items[i].line);
    decode_number(field, node.items[i], item_path, out[i]);
  }
}

void Decoder::decode_map(const Node& node, const std::string& path,
                         std::map<std::string, std::string>& out) {
  if (node.kind != Kind::kMapping) return refuse(node, path, "a mapping of texts");
  for (const text::Member& member : node.members) {
    const std::string member_path = text::join_path(path, member.key);
    faults_.set_line(member_path, member.value.line);
    decode_string(member.value, member_path, out[member.key]);
  }
}

void Decoder::decode_preset(const Node& node, const std::string& path, ModelSpec& out) {
  const Node* preset = node.find("preset");
  if (preset == nullptr || preset->kind != Kind::kString) return;
  if (apply_preset(preset->string, out)) return;
  std::vector<std::string_view> names;
  for (const Preset& known : presets())
    names.push_back(known.name);
  refuse(*preset, text::join_path(path, "preset"), join_choices(names));
}

void Decoder::decode_pod_template(const Node& node, const std::string& path, PodTemplate& out) {
  if (node.kind != Kind::kMapping) return refuse(node, path, "a mapping");
  out.json = text::to_json(node);
  for (const text::Member& member : node.members) {
    if (member.key == "metadata" || member.key == "spec") continue;
    report_unknown(member, path, {"metadata", "spec"});
  }
  if (const Node* metadata = node.find("metadata"); metadata && metadata->kind != Kind::kNull) {
    const std::string metadata_path = text::join_path(path, "metadata");
    faults_.set_line(metadata_path, metadata->line);
    if (metadata->kind != Kind::kMapping) refuse(*metadata, metadata_path, "a mapping");
    decode_member(*metadata, metadata_path, "labels", out.labels);
    decode_member(*metadata, metadata_path, "annotations", out.annotations);
  }
  const Node* spec = node.find("spec");
  const std::string spec_path = text::join_path(path, "spec");
  if (spec == nullptr || spec->kind != Kind::kMapping) {
    if (spec != nullptr) return refuse(*spec, spec_path, "a PodSpec");
    faults_.add_at(node.line, spec_path, "nothing", "a PodSpec");
    return;
  }
  faults_.set_line(spec_path, spec->line);
  decode_member(*spec, spec_path, "restartPolicy", out.restart_policy);
  decode_member(*spec, spec_path, "nodeName", out.node_name);
  decode_member(*spec, spec_path, "hostNetwork", out.host_network);
  decode_member(*spec, spec_path, "hostPID", out.host_pid);
  decode_member(*spec, spec_path, "hostIPC", out.host_ipc);
  const Node* containers = spec->find("containers");
  const std::string containers_path = text::join_path(spec_path, "containers");
  if (containers == nullptr || containers->kind != Kind::kSequence) {
    if (containers != nullptr) return refuse(*containers, containers_path, "a list of containers");
    faults_.add_at(spec->line, containers_path, "nothing", "a list of containers");
    return;
  }
  faults_.set_line(containers_path, containers->line);
  for (size_t i = 0; i < containers->items.size(); ++i) {
    decode_container(containers->items[i], text::join_path(containers_path, i),
                     out.containers.emplace_back());
  }
}

void Decoder::decode_container(const Node& node, const std::string& path, Container& out) {
  faults_.set_line(path, node.line);
  if (node.kind != Kind::kMapping) return refuse(node, path, "a container");
  decode_member(node, path, "name", out.name);
  decode_member(node, path, "image", out.image);
  decode_member(node, path, "command", out.command);
  decode_member(node, path, "args", out.args);
  out.gpus = limit_of(node, kGpuResource).value_or(0);
  out.gpu_part = gpu_part_of(node);
  out.memory_limit_bytes = limit_of(node, "memory");
  const Node* env = node.find("env");
  if (env == nullptr || env->kind == Kind::kNull) return;
  const std::string env_path = text::join_path(path, "env");
  faults_.set_line(env_path, env->line);
  if (env->kind != Kind::kSequence) return refuse(*env, env_path, "a list");
  for (size_t i = 0; i < env->items.size(); ++i) {
    const std::string item_path = text::join_path(env_path, i);
    faults_.set_line(item_path, env->items[i].line);
    EnvVar& variable = out.env.emplace_back();
    if (env->items[i].kind != Kind::kMapping) {
      refuse(env->items[i], item_path, "a variable");
      continue;
    }
    decode_member(env->items[i], item_path, "name", variable.name);
    decode_member(env->items[i], item_path, "value", variable.value);
    variable.source = source_of(env->items[i]);
  }
}

void Decoder::report_unknown(const text::Member& member, const std::string& path,
                             const std::vector<std::string_view>& names) {
  const std::string_view nearest = nearest_name(member.key, names);
  std::string wanted = nearest.empty() ? join_choices(names) : std::string(nearest);
  if (is_batch_norm(member.key)) wanted = kNoBatchNorm;
  const std::string member_path = text::join_path(path, member.key);
  if (!faults_.has(member_path)) faults_.add_at(member.line, member_path, "an unknown key", wanted);
}

}  // namespace trainyard::api
