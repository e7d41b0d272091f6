#include "common/api/pod_template.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <vector>

#include "common/api/pod_types.h"
#include "common/api/validate.h"
#include "common/text/quantity.h"
#include "common/text/rfc3339.h"

namespace trainyard::api {
namespace {

using text::Kind;
using text::Node;

struct PodField {
  std::string_view name;
  std::string_view form;
  bool required = false;
};
using PodTypes = std::map<std::string_view, std::vector<PodField>>;

/// Cuts `text` at the first `separator`, which neither part has.
std::string_view take_until(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

const PodTypes& pod_types() {
  static const PodTypes types = [] {
    PodTypes parsed;
    std::string_view table = kPodTypes.substr(1);
    std::vector<PodField>* fields = nullptr;
    while (!table.empty()) {
      std::string_view line = take_until(table, '\n');
      if (!line.starts_with(' ')) {
        fields = &parsed[line];
        continue;
      }
      line.remove_prefix(1);
      while (!line.empty()) {
        std::string_view form = take_until(line, ' ');
        std::string_view name = take_until(form, '=');
        const bool required = name.ends_with('!');
        if (required) name.remove_suffix(1);
        fields->push_back({name, form, required});
      }
    }
    return parsed;
  }();
  return types;
}

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Letters and digits at both ends, '-', '_' and '.' between them; at most 63.
bool is_label_word(std::string_view text) {
  constexpr size_t kMaxWord = 63;
  if (text.empty() || text.size() > kMaxWord) return false;
  if (!is_alphanumeric(text.front()) || !is_alphanumeric(text.back())) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return is_alphanumeric(c) || c == '-' || c == '_' || c == '.'; });
}

bool is_label_key(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return is_label_word(text);
  return is_dns_subdomain(text.substr(0, slash)) && is_label_word(text.substr(slash + 1));
}

/// RFC 6335, section 5.1.
bool is_port_name(std::string_view text) {
  constexpr size_t kMaxName = 15;
  const bool letter =
      std::any_of(text.begin(), text.end(), [](char c) { return c >= 'a' && c <= 'z'; });
  return letter && text.size() <= kMaxName && is_dns_label(text) &&
         text.find("--") == std::string_view::npos;
}

bool is_variable_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return c >= ' ' && c <= '~' && c != '='; });
}

struct NameForm {
  std::string_view form;
  bool (*holds)(std::string_view);
  std::string_view wanted;
};

constexpr NameForm kNameForms[] = {
    {"label", is_dns_label, "a lower-case name of at most 63 letters, digits and '-'"},
    {"subdomain", is_dns_subdomain,
     "a lower-case name of at most 253 letters, digits, '-' and '.'"},
    {"labelKey", is_label_key,
     "a key such as name or example.com/name: at most 63 letters, digits, '-', '_' and '.'"},
    {"labelValue", [](std::string_view text) { return text.empty() || is_label_word(text); },
     "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"},
    {"portName", is_port_name,
     "at most 15 lower-case letters, digits and single '-', at least one letter"},
    {"variable", is_variable_name, "printable ASCII without '='"},
    {"path",
     [](std::string_view text) {
       return text.starts_with('/') && text.find(':') == std::string_view::npos;
     },
     "an absolute path without ':'"},
};

const NameForm* name_form(std::string_view form) {
  const auto* const found = std::find_if(std::begin(kNameForms), std::end(kNameForms),
                                         [&](const NameForm& known) { return known.form == form; });
  return found == std::end(kNameForms) ? nullptr : found;
}

/// One text for all that name one place.
std::string place_of(std::string_view path) {
  return std::filesystem::path(std::string(path) + "/").lexically_normal().string();
}

struct Range {
  int64_t least;
  int64_t most;
};

/// "int32", "int64" or "1..5"; nullopt for other forms.
std::optional<Range> range_of(std::string_view form) {
  if (form == "int32") {
    return Range{std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
  }
  if (form == "int64") {
    return Range{std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
  const size_t dots = form.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  Range range{};
  std::from_chars(form.data(), form.data() + dots, range.least);
  std::from_chars(form.data() + dots + 2, form.data() + form.size(), range.most);
  return range;
}

class TemplateChecker {
 public:
  explicit TemplateChecker(FaultList& faults) : faults_(faults) {}

  void check(std::string_view form, const Node& node, const std::string& path) {
    if (node.kind == Kind::kRefused || faults_.has(path)) return;
    if (form.starts_with('[')) return check_list(form.substr(1, form.size() - 2), node, path);
    if (form.starts_with('{')) return check_map(form.substr(1, form.size() - 2), node, path);
    const auto type = pod_types().find(form);
    if (type != pod_types().end()) return check_object(type->first, type->second, node, path);
    check_scalar(form, node, path);
  }

 private:
  void refuse(const Node& node, const std::string& path, std::string wanted) {
    faults_.add_at(node.line, path, text::describe(node), std::move(wanted));
  }

  void check_object(std::string_view type, const std::vector<PodField>& fields, const Node& node,
                    const std::string& path) {
    if (node.kind != Kind::kMapping) return refuse(node, path, "a mapping");
    std::vector<std::string_view> names;
    for (const PodField& field : fields) {
      names.push_back(field.name);
      const std::string field_path = text::join_path(path, field.name);
      const Node* value = node.find(field.name);
      const bool given = value != nullptr && value->kind != Kind::kNull;
      if (given) check(field.form, *value, field_path);
      // A `value` may be empty text.
      const bool empty = given && value->kind == Kind::kString && value->string.empty();
      if (!field.required || (given && (!empty || field.name == "value"))) continue;
      if (faults_.has(field_path)) continue;
      faults_.add_at(given ? value->line : node.line, field_path, given ? "\"\"" : "nothing",
                     "a value");
    }
    for (const text::Member& member : node.members) {
      const std::string member_path = text::join_path(path, member.key);
      const bool known = std::find(names.begin(), names.end(), member.key) != names.end();
      if (known || faults_.has(member_path)) continue;
      const std::string_view nearest = nearest_name(member.key, names);
      faults_.add_at(member.line, member_path, "an unknown key",
                     nearest.empty()
                         ? "a field of " + std::string(type) + " in Kubernetes " +
                               std::string(kPodTypesVersion) + ": " + join_choices(names)
                         : std::string(nearest));
    }
    check_pod_rules(type, node, path, faults_);
  }

  /// `form`: of the items, and after a slash the fields that no two have in common.
  void check_list(std::string_view form, const Node& node, const std::string& path) {
    if (node.kind != Kind::kSequence) return refuse(node, path, "a list");
    const std::string_view item_form = take_until(form, '/');
    std::map<std::string, size_t> seen;
    for (size_t i = 0; i < node.items.size(); ++i) {
      const Node& item = node.items[i];
      const std::string item_path = text::join_path(path, i);
      if (item.kind == Kind::kNull) {
        refuse(item, item_path, "a value");
        continue;
      }
      check(item_form, item, item_path);
      const std::string key = key_of(item, form);
      if (key.empty()) continue;
      const auto [first, added] = seen.emplace(key, i);
      std::string_view fields = form;
      const std::string field_path = text::join_path(item_path, take_until(fields, ','));
      if (added || faults_.has(field_path)) continue;
      faults_.add_at(item.line, field_path, key,
                     "one other than item " + std::to_string(first->second) + " of the list");
    }
  }

  /// The values of the fields, as text; empty where one of them is no plain value.
  static std::string key_of(const Node& item, std::string_view fields) {
    std::string key;
    while (!fields.empty()) {
      const std::string_view name = take_until(fields, ',');
      const Node* value = item.find(name);
      const bool given = value != nullptr && value->kind != Kind::kNull;
      if (!given && name != "protocol") return {};
      std::string word = given ? value->string : "TCP";
      // Two texts may be one place.
      if (name.ends_with("Path")) word = place_of(word);
      key += (key.empty() ? "" : " ") + word;
    }
    return key;
  }

  /// `form`: of the keys, a colon, and of the values.
  void check_map(std::string_view form, const Node& node, const std::string& path) {
    if (node.kind != Kind::kMapping) return refuse(node, path, "a mapping");
    const std::string_view key_form = take_until(form, ':');
    const NameForm* keys = name_form(key_form);
    for (const text::Member& member : node.members) {
      const std::string member_path = text::join_path(path, member.key);
      if (keys != nullptr && !keys->holds(member.key) && !faults_.has(member_path)) {
        faults_.add_at(member.line, member_path, "the key " + text::describe(member.key),
                       std::string(keys->wanted));
      }
      if (member.value.kind != Kind::kNull) check(form, member.value, member_path);
    }
  }

  void check_scalar(std::string_view form, const Node& node, const std::string& path) {
    if (form == "any") return;
    if (form == "bool") {
      if (node.kind != Kind::kBool) refuse(node, path, "true or false");
    } else if (form == "quantity") {
      check_quantity(node, path);
    } else if (form == "port") {
      check_port(node, path);
    } else if (const auto range = range_of(form)) {
      const bool inside = node.kind == Kind::kInteger && node.integer >= range->least &&
                          node.integer <= range->most;
      if (!inside) {
        refuse(node, path,
               "a whole number from " + std::to_string(range->least) + " to " +
                   std::to_string(range->most));
      }
    } else {
      check_text(form, node, path);
    }
  }

  void check_text(std::string_view form, const Node& node, const std::string& path) {
    if (node.kind != Kind::kString) {
      const bool collection = node.kind == Kind::kSequence || node.kind == Kind::kMapping;
      return refuse(node, path, collection ? "text" : "text: put it in quotes");
    }
    if (form == "time") {
      if (!text::parse_time(node.string)) refuse(node, path, "a time such as 2026-01-31T12:00:00Z");
      return;
    }
    // Empty text is the default of an optional field, and a missing value of a required one.
    if (node.string.empty()) return;
    if (const NameForm* name = name_form(form)) {
      if (!name->holds(node.string)) refuse(node, path, std::string(name->wanted));
    } else if (form.find('|') != std::string_view::npos || form == "Restart") {
      std::vector<std::string_view> words;
      while (!form.empty())
        words.push_back(take_until(form, '|'));
      const bool known = std::find(words.begin(), words.end(), node.string) != words.end();
      if (!known) refuse(node, path, join_choices(words));
    }
  }

  void check_quantity(const Node& node, const std::string& path) {
    constexpr std::string_view kWanted = "a quantity such as 500m, 2 or 4Gi";
    const bool number = node.kind == Kind::kInteger || node.kind == Kind::kNumber;
    if (!number && node.kind != Kind::kString) return refuse(node, path, std::string(kWanted));
    std::string_view amount = node.string;
    if (amount.starts_with('+')) amount.remove_prefix(1);
    if (!text::parse_quantity(amount)) refuse(node, path, std::string(kWanted));
  }

  /// A port by number or by name.
  void check_port(const Node& node, const std::string& path) {
    constexpr int64_t kMostPort = 65535;
    const bool number =
        node.kind == Kind::kInteger && node.integer >= 1 && node.integer <= kMostPort;
    const bool name = node.kind == Kind::kString && is_port_name(node.string);
    if (!number && !name) refuse(node, path, "a number from 1 to 65535 or the name of a port");
  }

  FaultList& faults_;
};

}  // namespace

bool is_same_place(std::string_view a, std::string_view b) { return place_of(a) == place_of(b); }

void check_pod_template(const Node& pod_template, const std::string& path, FaultList& faults) {
  TemplateChecker(faults).check("PodTemplateSpec", pod_template, path);
}

}  // namespace trainyard::api
