#pragma once

#include <optional>
#include <string>

namespace trainyard::api {

/// A value of an enum that later versions may add to, as status holds it: a word that this version
/// does not know is no fault, equals no value, and is written back as it was read.
template <class E>
class OpenWord {
 public:
  OpenWord(E value = {}) : value_(value) {}  // it is one
  static OpenWord unknown(const std::string& word) {
    OpenWord open;
    open.value_.reset();
    open.unknown_ = word;
    return open;
  }

  /// nullopt: a word of a later version.
  std::optional<E> value() const { return value_; }
  /// Empty where the value is known.
  const std::string& unknown_word() const { return unknown_; }

  bool operator==(const OpenWord&) const = default;
  friend bool operator==(const OpenWord& word, E value) { return word.value_ == value; }

 private:
  std::optional<E> value_;
  std::string unknown_;
};

}  // namespace trainyard::api
