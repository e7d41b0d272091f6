#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/api/decode.h"
#include "common/api/enum_names.h"
#include "common/api/fault_list.h"
#include "common/api/job_fields.h"
#include "common/api/presets.h"
#include "common/text/document.h"
#include "common/text/rfc3339.h"

/// Internal to common/api: from a document tree to the structs, by the field tables. Checks types,
/// unknown keys and required fields; bounds are validate.h's business, as they hold for values from
/// anywhere.
namespace trainyard::api {

class Decoder {
 public:
  Decoder(FaultList& faults, UnknownKeys unknown_keys)
      : faults_(faults), unknown_keys_(unknown_keys) {}

  /// Decodes a node into `out`; what is wrong goes to the fault list and leaves that part of `out`
  /// as it was. The path must not have been decoded before.
  template <class T>
  void decode(const Field& field, const text::Node& node, const std::string& path, T& out);

  /// Adds "found <node>, wanted <wanted>", unless the reader has refused the node already.
  void refuse(const text::Node& node, const std::string& path, std::string wanted);

  FaultList& faults() { return faults_; }

 private:
  template <class T>
  class MemberReader;

  template <class T>
  void decode_struct(const text::Node& node, const std::string& path, T& out);
  template <class E>
  void decode_enum(const text::Node& node, const std::string& path, E& out);
  template <class E>
  void decode_open(const text::Node& node, const std::string& path, OpenWord<E>& out);
  template <class T>
  void decode_list(const Field& field, const text::Node& node, const std::string& path,
                   std::vector<T>& out);
  void decode_boolean(const text::Node& node, const std::string& path, bool& out);
  void decode_integer(const Field& field, const text::Node& node, const std::string& path,
                      int64_t& out);
  void decode_number(const Field& field, const text::Node& node, const std::string& path,
                     double& out);
  void decode_milliseconds(const text::Node& node, const std::string& path,
                           std::chrono::milliseconds& out);
  void decode_string(const text::Node& node, const std::string& path, std::string& out);
  void decode_time(const text::Node& node, const std::string& path, Time& out);
  void decode_pair(const Field& field, const text::Node& node, const std::string& path,
                   std::array<double, 2>& out);
  void decode_map(const text::Node& node, const std::string& path,
                  std::map<std::string, std::string>& out);
  void decode_pod_template(const text::Node& node, const std::string& path, PodTemplate& out);
  void decode_container(const text::Node& node, const std::string& path, Container& out);
  void decode_preset(const text::Node& node, const std::string& path, ModelSpec& out);
  /// The member decoded when there is one and it is not null.
  template <class T>
  void decode_member(const text::Node& node, const std::string& path, std::string_view name,
                     T& out);
  bool is_zero_word(const Field& field, const text::Node& node) const;
  void report_unknown(const text::Member& member, const std::string& path,
                      const std::vector<std::string_view>& names);

  FaultList& faults_;
  UnknownKeys unknown_keys_;
  bool is_in_status_ = false;
};

/// What a field that must be given wants, from its description.
inline std::string value_in_words(const Field& field) {
  std::string_view description = field.description;
  if (description.ends_with('.')) description.remove_suffix(1);
  return "a value: " + std::string(description);
}

/// Keys of an object's metadata that API servers and tools write and we do not read.
inline constexpr std::string_view kUnreadMetadata[] = {
    "managedFields", "ownerReferences", "selfLink", "generateName", "deletionGracePeriodSeconds"};

/// The visitor that reads the members of one mapping into one struct.
template <class T>
class Decoder::MemberReader {
 public:
  MemberReader(Decoder& decoder, const text::Node& node, const std::string& path)
      : decoder_(decoder), node_(node), path_(path) {}

  template <class M>
  void operator()(const Field& field, M& member) {
    names_.push_back(field.name);
    const text::Member* found = node_.find_member(field.name);
    const std::string path = text::join_path(path_, field.name);
    if (found != nullptr) decoder_.faults_.set_line(path, found->line);
    if (found == nullptr || found->value.kind == text::Kind::kNull) {
      if (field.need == Need::kRequired) {
        decoder_.faults_.add(path, "nothing", value_in_words(field));
      }
      return;
    }
    decoder_.decode(field, found->value, path, member);
  }

  void constant(const Field& field, std::string_view wanted) {
    names_.push_back(field.name);
    const text::Node* value = node_.find(field.name);
    const std::string path = text::join_path(path_, field.name);
    if (value == nullptr) {
      decoder_.faults_.add(path, "nothing", std::string(wanted));
    } else if (value->kind != text::Kind::kString || value->string != wanted) {
      decoder_.refuse(*value, path, std::string(wanted));
    }
  }

  void report_unknown() {
    for (const text::Member& member : node_.members) {
      if (std::find(names_.begin(), names_.end(), member.key) != names_.end()) continue;
      if constexpr (std::same_as<T, ObjectMeta>) {
        const auto* const end = std::end(kUnreadMetadata);
        if (std::find(std::begin(kUnreadMetadata), end, member.key) != end) continue;
      }
      decoder_.report_unknown(member, path_, names_);
    }
  }

 private:
  Decoder& decoder_;
  const text::Node& node_;
  const std::string& path_;
  std::vector<std::string_view> names_;
};

template <class T>
struct IsOptional : std::false_type {};
template <class T>
struct IsOptional<std::optional<T>> : std::true_type {};
template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
void Decoder::decode(const Field& field, const text::Node& node, const std::string& path, T& out) {
  if constexpr (IsOptional<T>::value) {
    decode(field, node, path, out.emplace());
    return;
  } else {
    faults_.set_line(path, node.line);
    if constexpr (std::same_as<T, bool>) {
      decode_boolean(node, path, out);
    } else if constexpr (std::same_as<T, int64_t>) {
      decode_integer(field, node, path, out);
    } else if constexpr (std::same_as<T, double>) {
      decode_number(field, node, path, out);
    } else if constexpr (std::same_as<T, std::string>) {
      decode_string(node, path, out);
    } else if constexpr (std::same_as<T, Time>) {
      decode_time(node, path, out);
    } else if constexpr (std::same_as<T, std::chrono::seconds>) {
      int64_t count = out.count();
      decode_integer(field, node, path, count);
      out = std::chrono::seconds(count);
    } else if constexpr (std::same_as<T, std::chrono::milliseconds>) {
      decode_milliseconds(node, path, out);
    } else if constexpr (std::same_as<T, std::array<double, 2>>) {
      decode_pair(field, node, path, out);
    } else if constexpr (std::same_as<T, std::map<std::string, std::string>>) {
      decode_map(node, path, out);
    } else if constexpr (std::same_as<T, PodTemplate>) {
      decode_pod_template(node, path, out);
    } else if constexpr (IsVector<T>::value) {
      decode_list(field, node, path, out);
    } else if constexpr (ApiEnum<T>) {
      decode_enum(node, path, out);
    } else if constexpr (requires { out.unknown_word(); }) {
      decode_open(node, path, out);
    } else {
      decode_struct(node, path, out);
    }
  }
}

template <class T>
void Decoder::decode_struct(const text::Node& node, const std::string& path, T& out) {
  if (node.kind != text::Kind::kMapping) {
    refuse(node, path, "a mapping");
    return;
  }
  const UnknownKeys outside = unknown_keys_;
  // Nobody writes status by hand, and it may come back from a newer controller.
  if constexpr (std::same_as<T, TrainingJobStatus>) {
    unknown_keys_ = UnknownKeys::kIgnore;
    is_in_status_ = true;
  }
  if constexpr (std::same_as<T, ModelSpec>) decode_preset(node, path, out);
  // The default of zeroStage: rank 0 holds all states under this mode.
  if constexpr (std::same_as<T, ParallelismSpec>) {
    const text::Node* mode = node.find("mode");
    if (mode != nullptr && mode->string == name_of(ParallelMode::kDataParallel)) out.zero_stage = 0;
  }
  MemberReader<T> reader(*this, node, path);
  visit_fields(reader, out);
  if (unknown_keys_ == UnknownKeys::kRefuse) reader.report_unknown();
  unknown_keys_ = outside;
  if constexpr (std::same_as<T, TrainingJobStatus>) is_in_status_ = false;
  if constexpr (std::same_as<T, EngineSpec>) derive_defaults(out);
}

template <class E>
void Decoder::decode_enum(const text::Node& node, const std::string& path, E& out) {
  if (node.kind == text::Kind::kString) {
    if (const auto value = enum_from_name<E>(node.string)) {
      out = *value;
      return;
    }
    if (is_in_status_) return;  // a word of a newer controller, which is worked out anew
  }
  std::vector<std::string_view> names;
  for (const EnumName<E>& entry : EnumTable<E>::kNames) {
    if (!entry.planned) names.push_back(entry.name);
  }
  refuse(node, path, join_choices(names));
}

template <class E>
void Decoder::decode_open(const text::Node& node, const std::string& path, OpenWord<E>& out) {
  if (node.kind != text::Kind::kString) {
    E refused{};
    decode_enum(node, path, refused);
    return;
  }
  if (const auto value = enum_from_name<E>(node.string)) {
    out = *value;
  } else {
    out = OpenWord<E>::unknown(node.string);
  }
}

template <class T>
void Decoder::decode_list(const Field& field, const text::Node& node, const std::string& path,
                          std::vector<T>& out) {
  if (node.kind != text::Kind::kSequence) {
    refuse(node, path, "a list");
    return;
  }
  out.clear();
  for (size_t i = 0; i < node.items.size(); ++i) {
    const std::string item_path = text::join_path(path, i);
    if (node.items[i].kind == text::Kind::kNull) {
      faults_.add_at(node.items[i].line, item_path, "nothing", "a value");
    }
    decode(field, node.items[i], item_path, out.emplace_back());
  }
}

template <class T>
void Decoder::decode_member(const text::Node& node, const std::string& path, std::string_view name,
                            T& out) {
  const text::Node* member = node.find(name);
  if (member == nullptr || member->kind == text::Kind::kNull) return;
  decode(Field{.name = name, .description = {}}, *member, text::join_path(path, name), out);
}

}  // namespace trainyard::api
