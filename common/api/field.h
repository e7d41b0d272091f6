#pragma once

#include <concepts>
#include <optional>
#include <string_view>
#include <type_traits>

/// The field tables: for every struct of the API one function `visit_fields(visitor, value)` that
/// calls `visitor(Field, member)` for each member in manifest order. Decoding, encoding, path
/// resolution and the reference page are visitors; a field is described here and nowhere else.
///
/// The member's C++ type says the field's type: bool, int64_t, double, std::string, an enum of
/// enum_names.h, an OpenWord of one, std::chrono::seconds (whole seconds),
/// std::chrono::milliseconds (decimal text of seconds: "1.25"), Time (RFC 3339), std::optional,
/// std::vector, std::array<double, 2>, std::map of strings, PodTemplate, or a struct with a table
/// of its own. The struct's default initialiser is the field's default.
namespace trainyard::api {

/// Whether a manifest may leave the field out.
enum class Need { kOptional, kRequired };

/// What the number 0 stands for, where it is no number.
enum class Zero {
  kNumber,  ///< itself
  kAbsent,  ///< the field is not given; 0 itself cannot be written
};

/// How a number is written.
enum class Notation {
  kNumber,
  kDecimalText,  ///< "2.31": status fields with a fraction, which Kubernetes keeps out of floats
};

/// Whether a string names a file, which resolve_paths makes absolute.
enum class Content { kPlain, kPath };

/// What a field is, for tools and for people. Bounds hold for each number (of each item of a list).
struct Field {
  std::string_view name;
  std::string_view description;  ///< a sentence, with the unit
  Need need = Need::kOptional;
  std::optional<double> minimum{};
  std::optional<double> maximum{};
  std::optional<double> above{};  ///< exclusive minimum
  std::optional<double> below{};  ///< exclusive maximum
  int max_items = 1024;           ///< of a list or map
  int max_length = 4096;          ///< bytes of each string
  Zero zero = Zero::kNumber;
  std::string_view zero_word{};  ///< a word that stands for 0 ("auto")
  /// The default in words, where it is no constant; goes before the member's initialiser.
  std::string_view default_note{};
  Notation notation = Notation::kNumber;
  Content content = Content::kPlain;
  bool planned = false;  ///< described, and not there yet: only the member's initialiser is taken
  /// The initialiser is the type's zero, and is not written: builds from before the field refuse
  /// its name or that value.
  bool unwritten_zero = false;
  /// Of an enum: later versions may add words, which the API server takes.
  bool is_open = false;
};

/// S is T or const T: what lets one table serve readers and writers.
template <class S, class T>
concept Is = std::same_as<std::remove_const_t<S>, T>;

}  // namespace trainyard::api
