#pragma once

#include <memory>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

namespace trainyard::testing_support {

/// A JSON value that nobody changes any more and that many keep: a copy is one of a pointer. Null
/// until it is given one.
class SharedJson {
 public:
  using Json = nlohmann::json;

  SharedJson() = default;
  SharedJson(Json value)  // NOLINT(google-explicit-constructor): it stands for its value
      : value_(std::make_shared<const Json>(std::move(value))) {}
  SharedJson(std::shared_ptr<const Json> value)  // NOLINT(google-explicit-constructor)
      : value_(std::move(value)) {}

  const Json& get() const {
    static const Json kNothing;
    return value_ ? *value_ : kNothing;
  }
  operator const Json&() const { return get(); }  // NOLINT(google-explicit-constructor)

  bool is_object() const { return get().is_object(); }
  bool is_null() const { return get().is_null(); }
  std::string dump() const { return get().dump(); }
  /// The key must be there.
  const Json& operator[](const char* key) const { return get()[key]; }

 private:
  std::shared_ptr<const Json> value_;
};

}  // namespace trainyard::testing_support
