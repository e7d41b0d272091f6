#pragma once

#include <cstdint>
#include <string>

namespace trainyard {

/// A whole number in JSON from outside; `Json` is nlohmann::json or nlohmann::ordered_json. Throws
/// the library's type_error for anything else, 1e30 among it, of which get<int64_t>() would make
/// what the processor likes.
template <class Json>
int64_t whole_number(const Json& value) {
  if (!value.is_number_integer()) {
    throw Json::type_error::create(
        302, std::string("type must be whole number, but is ") + value.type_name(), nullptr);
  }
  return value.template get<int64_t>();
}

/// The same of an object's member; `otherwise` where it has none.
template <class Json>
int64_t whole_number(const Json& object, const char* key, int64_t otherwise) {
  const auto found = object.find(key);
  return found == object.end() ? otherwise : whole_number(*found);
}

}  // namespace trainyard
