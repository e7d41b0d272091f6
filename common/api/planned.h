#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/api/enum_names.h"
#include "common/api/fault_list.h"
#include "common/api/field_kinds.h"
#include "common/text/document.h"
#include "common/text/json_writer.h"

/// Internal to common/api: what is described and not there yet. Field::planned and
/// EnumName::planned say it once; validation, the schema and the reference page are made from them.
namespace trainyard::api {

/// Of an enum, or of an optional or list of one: the names that are there, or those that are not.
template <class T>
std::vector<std::string_view> names_of(bool planned) {
  std::vector<std::string_view> names;
  if constexpr (IsOptional<T>::value || IsVector<T>::value) {
    names = names_of<typename T::value_type>(planned);
  } else if constexpr (ApiEnum<T>) {
    for (const EnumName<T>& entry : EnumTable<T>::kNames) {
      if (entry.planned == planned) names.push_back(entry.name);
    }
  }
  return names;
}

/// The visitor that faults what is planned.
class PlannedChecker {
 public:
  /// `initial`: the addresses of the members of a struct that is as it was made, in the order of
  /// its table.
  PlannedChecker(FaultList& faults, std::string path, const std::vector<const void*>& initial)
      : faults_(faults), path_(std::move(path)), next_(initial.begin()) {}

  template <class T>
  void operator()(const Field& field, const T& value) {
    const T& initial = *static_cast<const T*>(*next_++);
    const std::string path = text::join_path(path_, field.name);
    if (field.planned) {
      if constexpr (requires { in_words(value); }) {
        if (value != initial) refuse(path, in_words(value), in_words(initial));
      }
    } else {
      check(path, value);
    }
  }
  void constant(const Field&, std::string_view) {}

  template <class S>
  static void check_struct(const S& value, const std::string& path, FaultList& faults) {
    const S initial{};
    Addresses addresses;
    visit_fields(addresses, initial);
    PlannedChecker checker(faults, path, addresses.found);
    visit_fields(checker, value);
  }

 private:
  struct Addresses {
    template <class T>
    void operator()(const Field&, const T& value) {
      found.push_back(&value);
    }
    void constant(const Field&, std::string_view) {}
    std::vector<const void*> found;
  };

  static std::string in_words(bool value) { return value ? "true" : "false"; }
  static std::string in_words(int64_t value) { return std::to_string(value); }
  template <ApiEnum E>
  static std::string in_words(E value) {
    return std::string(name_of(value));
  }
  template <class T>
  static std::string in_words(const std::vector<T>& value) {
    return value.empty() ? "an empty list" : "a list";
  }

  template <class T>
  void check(const std::string& path, const T& value) {
    if constexpr (IsOptional<T>::value) {
      if (value) check(path, *value);
    } else if constexpr (ApiEnum<T>) {
      for (const EnumName<T>& entry : EnumTable<T>::kNames) {
        if (entry.planned && entry.value == value)
          refuse(path, std::string(entry.name), join_choices(names_of<T>(false)));
      }
    } else if constexpr (IsVector<T>::value) {
      for (size_t i = 0; i < value.size(); ++i)
        check(text::join_path(path, i), value[i]);
    } else if constexpr (kHasTable<T> && !std::same_as<T, TrainingJobStatus> &&
                         !std::same_as<T, ObjectMeta>) {
      check_struct(value, path, faults_);
    }
  }

  void refuse(const std::string& path, std::string found, const std::string& wanted) {
    if (!faults_.faulted(path))
      faults_.add(path, std::move(found), wanted + " (not in this version)");
  }

  FaultList& faults_;
  std::string path_;
  std::vector<const void*>::const_iterator next_;
};

}  // namespace trainyard::api
