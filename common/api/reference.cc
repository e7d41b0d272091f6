#include "common/api/reference.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "common/api/field_kinds.h"
#include "common/api/rules.h"

namespace trainyard::api {
namespace {

constexpr char kIntroduction[] =
    R"(# TrainingJob

`trainyard.dev/v1alpha1`, kind `TrainingJob`. `trainyard reference trainingjob` generates this page from the field
tables in `common/api`; do not edit it.

`trainyard validate` and `trainyard run` read manifests strictly. They reject an unknown or repeated key, a word such as
`yes`, a number such as `0777`, a tag and a second document. Each message gives the line and says what to write instead.
`trainyard validate FILE` lists every fault in a manifest. A file with the single key `engine` is also a job: one node,
one rank.

`spec.template` is checked against the types and rules of Kubernetes' own PodTemplateSpec. The checks cover unknown
fields, kinds of values, required fields, words, quantities, names, ranges, repeated ports and mounts. Quotas, policies,
classes and admission depend on the cluster, and only its API server can check them. `trainyard validate --server FILE`
asks the API server of kubectl's context by a dry run.

A cluster accepts more. `kubectl apply` reads YAML by older rules: `yes` is true, `0777` is 511, and the last of several
repeated keys counts. It has the API server reject unknown keys, unless it is called with `--validate=warn` or
`--validate=ignore`. `trainyard-operator submit` reads manifests as strictly as `trainyard validate` and also has the API
server reject unknown keys. Other clients (helm, controllers) may not request this check. The API server then drops
unknown keys, and the job runs without them.

A job with `spec.template` and without `engine` runs your own program. `trainyard run` starts it as its container
specifies: in its `workingDir` and with its `env`. It replaces `$(NAME)` in `command`, `args` and `env` as in a cluster.
Variables of `envFrom` come from files (`--env-from NAME=FILE`); variables of `valueFrom` come from the environment of
`trainyard run`. Volumes are not mounted: paths that a cluster mounts must exist on the machine. `trainyard run` ignores
other containers, `initContainers`, `lifecycle`, `livenessProbe`, `securityContext` and everything else that would change
the program, and lists them when it starts.

Under `trainyard run`, relative paths start from the folder of the manifest. In a cluster, paths are absolute and are
paths inside the container, where volumes are mounted.

`kubectl apply` rejects planned fields and values; `trainyard validate` rejects them with "not in this version".
)";

constexpr char kPresetsHead[] = R"(
## Presets of `spec.engine.model`

| Preset | Shape | Layers | Hidden | Heads | Vocabulary | Positions |
|---|---|---|---|---|---|---|
)";

/// Pipes would end a table's cell.
std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) {
    text.insert(at, 1, '\\');
  }
  return text;
}

std::string code(std::string_view text) { return "`" + std::string(text) + "`"; }

template <class T>
struct Item {
  using Type = T;
};
template <class T>
struct Item<std::optional<T>> {
  using Type = typename Item<T>::Type;
};
template <class T>
struct Item<std::vector<T>> {
  using Type = typename Item<T>::Type;
};

template <class T>
std::string type_in_words(const Field& field, const std::string& path) {
  if constexpr (IsOptional<T>::value) {
    return type_in_words<typename T::value_type>(field, path);
  } else if constexpr (IsVector<T>::value) {
    return "list of " + type_in_words<typename T::value_type>(field, path);
  } else if constexpr (std::same_as<T, bool>) {
    return "boolean";
  } else if constexpr (std::same_as<T, int64_t>) {
    return field.zero_word.empty() ? "integer" : "integer or " + code(field.zero_word);
  } else if constexpr (std::same_as<T, std::chrono::seconds>) {
    return "integer (seconds)";
  } else if constexpr (std::same_as<T, std::chrono::milliseconds>) {
    return "decimal text";
  } else if constexpr (std::same_as<T, double>) {
    if (field.notation == Notation::kDecimalText) return "decimal text";
    return field.zero_word.empty() ? "number" : "number or " + code(field.zero_word);
  } else if constexpr (std::same_as<T, std::string>) {
    return field.content == Content::kPath ? "path" : "text";
  } else if constexpr (std::same_as<T, Time>) {
    return "time (RFC 3339)";
  } else if constexpr (std::same_as<T, std::array<double, 2>>) {
    return "list of 2 numbers";
  } else if constexpr (std::same_as<T, std::map<std::string, std::string>>) {
    return "map of texts";
  } else if constexpr (std::same_as<T, PodTemplate>) {
    return "PodTemplateSpec";
  } else if constexpr (ApiEnum<T>) {
    std::string names;
    for (const EnumName<T>& entry : EnumTable<T>::kNames) {
      if (!names.empty()) names += " | ";
      names += code(entry.name) + (entry.planned ? " (planned)" : "");
    }
    return field.is_open ? names + "; later versions may add words" : names;
  } else if constexpr (IsOpenWord<T>::value) {
    Field open = field;
    open.is_open = true;
    return type_in_words<typename std::remove_cvref_t<decltype(*T().value())>>(open, path);
  } else {
    return "[" + path + "](#" + [&] {
      std::string anchor;  // as GitHub makes it of a heading
      for (const char c : path) {
        if (c >= 'A' && c <= 'Z') anchor += static_cast<char>(c - 'A' + 'a');
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) anchor += c;
      }
      return anchor;
    }() + ")";
  }
}

/// A value as a manifest would write it; empty where there is none.
template <class T>
std::string value_in_words(const Field& field, const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::same_as<T, int64_t>) {
    if (value == 0 && field.zero == Zero::kAbsent) return "";
    if (value == 0 && !field.zero_word.empty()) return std::string(field.zero_word);
    return std::to_string(value);
  } else if constexpr (std::same_as<T, std::chrono::seconds>) {
    return std::to_string(value.count());
  } else if constexpr (std::same_as<T, double>) {
    return text::shortest(value);
  } else if constexpr (std::same_as<T, std::string>) {
    return value;
  } else if constexpr (std::same_as<T, std::array<double, 2>>) {
    return "[" + text::shortest(value[0]) + ", " + text::shortest(value[1]) + "]";
  } else if constexpr (ApiEnum<T>) {
    return std::string(name_of(value));
  } else {
    return "";
  }
}

/// The visitor that writes the section of one struct and notes those of its parts.
class SectionWriter {
 public:
  explicit SectionWriter(std::string path) : path_(std::move(path)) {}

  template <class T>
  void operator()(const Field& field, const T& value) {
    using Inner = typename Item<T>::Type;
    const std::string path = text::join_path(path_, field.name);
    std::string default_text = value_in_words(field, value);
    if (!default_text.empty()) default_text = code(default_text);
    if (!field.default_note.empty()) default_text = std::string(field.default_note);
    if (field.need == Need::kRequired) default_text = "required";
    std::string description(field.description);
    if (field.planned) description += " Planned: this version accepts only the default.";
    const std::string bounds = bounds_in_words(field);
    if (!bounds.empty()) description += " Bounds: " + bounds + ".";
    if constexpr (IsVector<T>::value) {
      description += " At most " + std::to_string(field.max_items) + " items.";
    }
    row(field.name, type_in_words<T>(field, path), default_text, description);
    if constexpr (kHasTable<Inner>) {
      parts_.push_back([path] { return section<Inner>(path); });
    }
  }
  void constant(const Field& field, std::string_view value) {
    row(field.name, code(value), "required", std::string(field.description));
  }

  /// The section of T and, after it, those of its parts.
  template <class T>
  static std::string section(const std::string& path) {
    SectionWriter writer(path);
    const T defaults{};
    visit_fields(writer, defaults);
    std::string text = path.empty() ? "" : "\n## `" + path + "`\n";
    text += "\n| Field | Type | Default | Meaning |\n|---|---|---|---|\n" + writer.rows_;
    for (const auto& part : writer.parts_)
      text += part();
    return text;
  }

 private:
  void row(std::string_view name, const std::string& type, const std::string& default_text,
           const std::string& description) {
    rows_ += "| " + code(name) + " | " + cell(type) + " | " + cell(default_text) + " | " +
             cell(description) + " |\n";
  }

  std::string path_;
  std::string rows_;
  std::vector<std::function<std::string()>> parts_;
};

}  // namespace

std::string reference_page() {
  std::string page = kIntroduction + SectionWriter::section<TrainingJob>("");
  page += kPresetsHead;
  for (const Preset& preset : presets()) {
    page += "| " + code(preset.name) + " | " + std::string(preset.description) + " | " +
            std::to_string(preset.layers) + " | " + std::to_string(preset.hidden) + " | " +
            std::to_string(preset.heads) + " | " +
            (preset.vocab > 0 ? std::to_string(preset.vocab) : "from the data") + " | " +
            std::to_string(preset.max_positions) + " |\n";
  }
  return page;
}

}  // namespace trainyard::api
