#pragma once

#include <string>

namespace trainyard::api {

/// docs/reference/trainingjob.md, made from the field tables: a section a struct with every field's
/// type, bounds, default and meaning.
std::string reference_page();

}  // namespace trainyard::api
