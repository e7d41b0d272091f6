#pragma once

#include <string_view>

namespace trainyard::cli {

/// The report's style sheet: light and dark by the reader's preference, one or two columns by the
/// width of the window. Colours of series are `a`, `b` and the layers `s0` .. `s7`.
extern const char* const kReportStyle;

/// The value of a colour of the style sheet, such as "ink" or "s3", in light mode: for pictures
/// that stand alone, as few viewers of SVG know variables.
std::string_view light_colour(std::string_view name);

/// Attributes of the <svg> element of a picture, for its text.
inline constexpr char kTextAttributes[] = "font-family='system-ui, sans-serif' font-size='12'";

}  // namespace trainyard::cli
