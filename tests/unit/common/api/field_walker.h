#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/api/job_fields.h"
#include "common/text/document.h"

namespace trainyard::api {

template <class T>
struct ItemOf {
  using Type = T;
};
template <class T>
struct ItemOf<std::optional<T>> : ItemOf<T> {};
template <class T>
struct ItemOf<std::vector<T>> : ItemOf<T> {};

/// Calls `each(path, field, std::type_identity<member type>)` for every field below a struct, list
/// items without an index.
template <class Each>
class FieldWalker {
 public:
  FieldWalker(std::string path, Each& each) : path_(std::move(path)), each_(each) {}

  template <class M>
  void operator()(const Field& field, const M&) {
    using Item = typename ItemOf<M>::Type;
    const std::string path = text::join_path(path_, field.name);
    each_(path, field, std::type_identity<M>());
    const Item item{};
    FieldWalker inner(path, each_);
    if constexpr (requires { visit_fields(inner, item); }) visit_fields(inner, item);
  }
  void constant(const Field& field, std::string_view) {
    each_(text::join_path(path_, field.name), field, std::type_identity<std::string>());
  }

 private:
  std::string path_;
  Each& each_;
};

/// Every field of a TrainingJob.
template <class Each>
void for_each_field(Each each) {
  FieldWalker walker("", each);
  const TrainingJob job;
  visit_fields(walker, job);
}

}  // namespace trainyard::api
