#pragma once

#include <array>
#include <map>
#include <string>
#include <type_traits>

#include "common/api/decoder.h"

/// Internal to common/api: what kind of field a C++ type makes.
namespace trainyard::api {

template <class T>
struct IsOpenWord : std::false_type {};
template <class E>
struct IsOpenWord<OpenWord<E>> : std::true_type {};

/// True for structs with a field table of their own.
template <class T>
inline constexpr bool kHasTable =
    std::is_class_v<T> && !std::same_as<T, std::string> && !std::same_as<T, PodTemplate> &&
    !std::same_as<T, Time> && !std::same_as<T, std::chrono::seconds> &&
    !std::same_as<T, std::chrono::milliseconds> && !std::same_as<T, std::array<double, 2>> &&
    !std::same_as<T, std::map<std::string, std::string>> && !IsOptional<T>::value &&
    !IsVector<T>::value && !IsOpenWord<T>::value;

}  // namespace trainyard::api
