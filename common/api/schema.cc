#include "common/api/schema.h"

#include <cctype>
#include <type_traits>

#include "common/api/field_kinds.h"
#include "common/api/planned.h"
#include "common/api/pod_template_schema.h"
#include "common/api/rules.h"
#include "common/api/schema_node.h"

namespace trainyard::api::schema {
namespace {

using text::Kind;
using text::Node;

/// Whether defaults are written: the controller writes status whole, defaults would only hide gaps.
enum class Defaults { kWritten, kLeftOut };

void put_bounds(const Field& field, Node& schema) {
  if (field.minimum) put(schema, "minimum", number_node(*field.minimum));
  if (field.above) {
    put(schema, "minimum", number_node(*field.above));
    put(schema, "exclusiveMinimum", boolean_node(true));
  }
  if (field.maximum) put(schema, "maximum", number_node(*field.maximum));
  if (field.below) {
    put(schema, "maximum", number_node(*field.below));
    put(schema, "exclusiveMaximum", boolean_node(true));
  }
}

Node type_node(std::string_view type) { return mapping_node({{"type", string_node(type)}}); }

Node integer_schema(const Field& field) {
  Node schema = type_node("integer");
  put(schema, "format", string_node("int64"));
  put_bounds(field, schema);
  return schema;
}

/// A number or one word: bounds of such a field can only be a rule.
Node number_or_word(const Field& field) {
  Node schema = mapping_node({{"x-kubernetes-int-or-string", boolean_node(true)}});
  std::string inside = "self >= " + text::shortest(field.minimum.value_or(1));
  if (field.maximum) inside += " && self <= " + text::shortest(*field.maximum);
  const std::string rule =
      "type(self) == int ? " + inside + " : self == '" + std::string(field.zero_word) + "'";
  put(schema, "x-kubernetes-validations",
      list_node({mapping_node(
          {{"rule", string_node(rule)},
           {"message", string_node("must be a whole number " + bounds_in_words(field))}})}));
  return schema;
}

/// Seconds to the millisecond and other numbers with a fraction, as status writes them.
Node decimal_text() {
  Node schema = type_node("string");
  put(schema, "maxLength", integer_node(32));
  return schema;
}

Node string_schema(const Field& field) {
  Node schema = type_node("string");
  put(schema, "maxLength", integer_node(field.max_length));
  if (field.need == Need::kRequired) put(schema, "minLength", integer_node(1));
  return schema;
}

/// A CamelCase word, as reasons of Kubernetes' conditions are, so that an API server whose
/// definition is older takes those of a newer operator.
Node word_schema() {
  Node schema = type_node("string");
  put(schema, "minLength", integer_node(1));
  put(schema, "maxLength", integer_node(64));
  put(schema, "pattern", string_node("^[A-Za-z][A-Za-z0-9]*$"));
  return schema;
}

/// As Kubernetes has it for its own (metav1.Condition): others may write conditions, too.
Node condition_type_schema() {
  Node schema = type_node("string");
  put(schema, "minLength", integer_node(1));
  put(schema, "maxLength", integer_node(316));
  put(schema, "pattern",
      string_node("^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
                  "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"));
  return schema;
}

template <class E>
Node enum_schema() {
  Node schema = type_node("string");
  Node& names = member(schema, "enum", Kind::kSequence);
  for (const std::string_view name : names_of<E>(false))
    names.items.push_back(string_node(name));
  return schema;
}

/// The member's initialiser as a manifest would write it; kNull where that is no constant.
template <class T>
Node default_of(const Field& field, const T& value) {
  if (field.need == Need::kRequired || !field.default_note.empty()) return {};
  if constexpr (std::same_as<T, bool>) {
    return boolean_node(value);
  } else if constexpr (std::same_as<T, int64_t>) {
    if (value != 0) return integer_node(value);
    if (!field.zero_word.empty()) return string_node(field.zero_word);
    return field.zero == Zero::kAbsent ? Node() : integer_node(0);
  } else if constexpr (std::same_as<T, std::chrono::seconds>) {
    return integer_node(value.count());
  } else if constexpr (std::same_as<T, double>) {
    return number_node(value);
  } else if constexpr (std::same_as<T, std::string>) {
    return value.empty() ? Node() : string_node(value);
  } else if constexpr (std::same_as<T, std::array<double, 2>>) {
    return list_node({number_node(value[0]), number_node(value[1])});
  } else if constexpr (ApiEnum<T>) {
    return string_node(name_of(value));
  } else if constexpr (kHasTable<T> && !std::same_as<T, TrainingJobStatus>) {
    return mapping_node({});  // so that the defaults within are filled in
  } else {
    return {};
  }
}

/// "Ranks per pod. From 1 to 1024, or auto. Default: 1."
std::string description_of(const Field& field, const Node& default_value) {
  std::string text(field.description);
  std::string bounds = bounds_in_words(field);
  if (!bounds.empty()) {
    bounds[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(bounds[0])));
    text += " " + bounds + ".";
  }
  std::string value(field.default_note);
  const bool constant = default_value.kind != Kind::kNull && default_value.kind != Kind::kMapping;
  if (value.empty() && constant) {
    value =
        default_value.kind == Kind::kString ? default_value.string : text::to_json(default_value);
  }
  if (!value.empty()) text += " Default: " + value + ".";
  return text;
}

/// What is not there yet, in a sentence for `kubectl explain`; empty where all is.
template <class T>
std::string planned_sentence(const Field& field) {
  if (field.planned) return " Planned: this version accepts only the default.";
  const std::vector<std::string_view> names = names_of<T>(true);
  return names.empty() ? "" : " Planned, and refused in this version: " + join_choices(names) + ".";
}

/// Has the API server refuse a planned field that is not at its default.
template <class T>
void put_planned(const Field& field, const T& initial, Node& schema) {
  if (!field.planned) return;
  const Node value = default_of(field, initial);
  std::string rule = "self == " + text::to_json(value);
  std::string wanted = text::to_json(value);
  if constexpr (IsVector<T>::value) {
    rule = "size(self) == 0";
    wanted = "an empty list";
  } else if constexpr (ApiEnum<T>) {
    rule = "self == '" + value.string + "'";
    wanted = value.string;
  }
  put(schema, "x-kubernetes-validations",
      list_node({mapping_node(
          {{"rule", string_node(rule)},
           {"message", string_node("is planned; this version accepts only " + wanted)}})}));
}

/// The visitor that collects the properties of one struct.
class ObjectWriter {
 public:
  explicit ObjectWriter(Defaults defaults) : defaults_(defaults) {}

  template <class T>
  void operator()(const Field& field, const T& value) {
    Node default_value;
    if (defaults_ == Defaults::kWritten) default_value = default_of(field, value);
    Node property = mapping_node({});
    // The API server defines metadata itself and takes nothing but its type.
    if constexpr (!std::same_as<T, ObjectMeta>) {
      put(property, "description",
          string_node(description_of(field, default_value) + planned_sentence<T>(field)));
    }
    for (text::Member& member : schema_of<T>(field).members)
      put(property, member.key, std::move(member.value));
    put_planned(field, value, property);
    if (default_value.kind != Kind::kNull) put(property, "default", std::move(default_value));
    put(properties_, field.name, std::move(property));
    if (field.need == Need::kRequired) required_.items.push_back(string_node(field.name));
  }
  /// The API server knows which versions are served and of what kind their objects are; a schema
  /// that repeats it could not be copied into the next version.
  void constant(const Field& field, std::string_view) {
    put(properties_, field.name,
        mapping_node(
            {{"description", string_node(field.description)}, {"type", string_node("string")}}));
  }

  template <class T>
  static Node object(Defaults defaults) {
    ObjectWriter writer(defaults);
    const T initial{};
    visit_fields(writer, initial);
    Node schema = type_node("object");
    if (!writer.required_.items.empty()) put(schema, "required", std::move(writer.required_));
    put(schema, "properties", std::move(writer.properties_));
    return schema;
  }

 private:
  template <class T>
  Node schema_of(const Field& field) const {
    if constexpr (IsOptional<T>::value) {
      return schema_of<typename T::value_type>(field);
    } else if constexpr (IsVector<T>::value) {
      Node schema = type_node("array");
      put(schema, "maxItems", integer_node(field.max_items));
      if (field.need == Need::kRequired) put(schema, "minItems", integer_node(1));
      put(schema, "items", schema_of<typename T::value_type>(field));
      return schema;
    } else if constexpr (std::same_as<T, bool>) {
      return type_node("boolean");
    } else if constexpr (std::same_as<T, int64_t>) {
      return field.zero_word.empty() ? integer_schema(field) : number_or_word(field);
    } else if constexpr (std::same_as<T, std::chrono::seconds>) {
      return integer_schema(field);
    } else if constexpr (std::same_as<T, std::chrono::milliseconds>) {
      return decimal_text();
    } else if constexpr (std::same_as<T, double>) {
      if (field.notation == Notation::kDecimalText) return decimal_text();
      if (!field.zero_word.empty()) return number_or_word(field);
      Node schema = type_node("number");
      put_bounds(field, schema);
      return schema;
    } else if constexpr (std::same_as<T, std::string>) {
      return string_schema(field);
    } else if constexpr (std::same_as<T, Time>) {
      Node schema = type_node("string");
      put(schema, "format", string_node("date-time"));
      return schema;
    } else if constexpr (std::same_as<T, std::array<double, 2>>) {
      Node items = type_node("number");
      put_bounds(field, items);
      Node schema = type_node("array");
      put(schema, "minItems", integer_node(2));
      put(schema, "maxItems", integer_node(2));
      put(schema, "items", std::move(items));
      return schema;
    } else if constexpr (std::same_as<T, PodTemplate>) {
      return pod_template();
    } else if constexpr (ApiEnum<T>) {
      return field.is_open ? word_schema() : enum_schema<T>();
    } else if constexpr (std::same_as<T, OpenWord<ConditionType>>) {
      return condition_type_schema();
    } else if constexpr (IsOpenWord<T>::value) {
      return word_schema();
    } else if constexpr (std::same_as<T, ObjectMeta>) {
      return type_node("object");  // the API server's own
    } else if constexpr (std::same_as<T, TrainingJobStatus>) {
      return object<T>(Defaults::kLeftOut);
    } else {
      return object<T>(defaults_);
    }
  }

  Defaults defaults_;
  Node properties_ = mapping_node({});
  Node required_ = list_node({});
};

}  // namespace

Node training_job() { return ObjectWriter::object<TrainingJob>(Defaults::kWritten); }

}  // namespace trainyard::api::schema
