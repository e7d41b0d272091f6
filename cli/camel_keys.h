#pragma once

#include <string>

namespace trainyard::cli {

/// A JSON document with every key in the style of what commands print: "text_bytes" becomes
/// "textBytes". `json` is JSON of our own.
std::string with_camel_keys(const std::string& json);

}  // namespace trainyard::cli
