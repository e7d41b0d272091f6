#pragma once

namespace trainyard::cli {

/// The report's style sheet: light and dark by the reader's preference, one or two columns by the
/// width of the window. Colours of series are `a`, `b` and the layers `s0` .. `s7`.
extern const char* const kReportStyle;

}  // namespace trainyard::cli
