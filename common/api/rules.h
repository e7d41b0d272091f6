#pragma once

#include <chrono>
#include <cmath>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "common/api/decoder.h"
#include "common/api/fault_list.h"
#include "common/text/document.h"
#include "common/text/json_writer.h"

/// Internal to common/api: what the validators are written with.
namespace trainyard::api {

/// Adds faults below one path; a rule none of whose fields is decodable is left out.
class Rules {
 public:
  Rules(FaultList& faults, std::string path) : faults_(faults), path_(std::move(path)) {}

  /// "a.b" below this path.
  std::string at(std::string_view field) const { return text::join_path(path_, field); }
  Rules below(std::string_view field) const { return {faults_, at(field)}; }
  Rules below(std::string_view field, size_t index) const {
    return {faults_, text::join_path(at(field), index)};
  }

  /// Faults `field` unless `holds`; left out when it or one of the other fields has a fault.
  void require(bool holds, std::string_view field, std::string found, std::string wanted,
               std::initializer_list<std::string_view> others = {}) const {
    if (holds || faults_.faulted(at(field))) return;
    for (const std::string_view other : others) {
      if (faults_.faulted(at(other))) return;
    }
    faults_.add(at(field), std::move(found), std::move(wanted));
  }

  FaultList& faults() const { return faults_; }
  const std::string& path() const { return path_; }

 private:
  FaultList& faults_;
  std::string path_;
};

/// The visitor that checks the bounds of the field tables.
class BoundsChecker {
 public:
  BoundsChecker(FaultList& faults, std::string path) : faults_(faults), path_(std::move(path)) {}

  template <class T>
  void operator()(const Field& field, const T& value) {
    check(field, text::join_path(path_, field.name), value);
  }
  void constant(const Field&, std::string_view) {}

 private:
  template <class T>
  void check(const Field& field, const std::string& path, const T& value) {
    if constexpr (IsOptional<T>::value) {
      if (value) check(field, path, *value);
    } else if constexpr (std::same_as<T, int64_t>) {
      if (value != 0 || (field.zero == Zero::kNumber && field.zero_word.empty())) {
        check_number(field, path, static_cast<double>(value), std::to_string(value));
      }
    } else if constexpr (std::same_as<T, std::chrono::seconds>) {
      check(field, path, int64_t{value.count()});
    } else if constexpr (std::same_as<T, double>) {
      if (value != 0 || field.zero_word.empty()) {
        check_number(field, path, value, std::isfinite(value) ? text::shortest(value) : "NaN");
      }
    } else if constexpr (std::same_as<T, std::string>) {
      check_string(field, path, value);
    } else if constexpr (std::same_as<T, std::map<std::string, std::string>>) {
      check_count(field, path, value.size());
      for (const auto& [key, text] : value)
        check_string(field, text::join_path(path, key), text);
    } else if constexpr (std::same_as<T, std::array<double, 2>>) {
      for (size_t i = 0; i < value.size(); ++i)
        check(field, text::join_path(path, i), value[i]);
    } else if constexpr (IsVector<T>::value) {
      check_count(field, path, value.size());
      for (size_t i = 0; i < value.size(); ++i)
        check(field, text::join_path(path, i), value[i]);
    } else if constexpr (!std::same_as<T, bool> && !std::same_as<T, Time> &&
                         !std::same_as<T, std::chrono::milliseconds> && !ApiEnum<T> &&
                         !std::same_as<T, PodTemplate> && !std::same_as<T, TrainingJobStatus>) {
      BoundsChecker inner(faults_, path);
      visit_fields(inner, value);
    }
  }

  void check_number(const Field& field, const std::string& path, double value, std::string found);
  void check_string(const Field& field, const std::string& path, const std::string& value);
  void check_count(const Field& field, const std::string& path, size_t count);

  FaultList& faults_;
  std::string path_;
};

/// The bounds of a number in words: "a number from 1 to 5"; empty where it has none.
std::string bounds_in_words(const Field& field);

}  // namespace trainyard::api
