#pragma once

#include <filesystem>
#include <string>

#include "cli/report/history.h"
#include "cli/run/run_view.h"
#include "common/base/error.h"

namespace trainyard::cli {

inline constexpr char kReportFile[] = "report.html";

/// The run as one HTML page: what it came to, curves of loss, speed, step time and learning rate
/// over steps with restarts marked, a step of each rank where the run was traced, and what
/// happened. No scripts, nothing loaded from elsewhere. Reads Summary::trace_file.
std::string render_report(const Summary& given, const History& history);

/// A view that passes everything on to `inner` and keeps the run's history in `run_dir`; at the end
/// it writes RUN/report.html. What cannot be written is told through `inner` and stops nothing.
std::unique_ptr<RunView> make_recording_view(std::unique_ptr<RunView> inner,
                                             const std::filesystem::path& run_dir);

}  // namespace trainyard::cli
