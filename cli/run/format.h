#pragma once

#include <cstdint>
#include <string>

#include "cli/run/run_view.h"

/// How numbers and summaries of a run are written for people. Pure, but for from_here() and what
/// names paths.
namespace trainyard::cli {

/// "1,234,567".
std::string grouped(int64_t value);
/// "42 s", "3 min 20 s", "2 h 5 min", "3 d 4 h".
std::string duration_text(double seconds);
/// With that many digits behind the point; "-" for what is not finite.
std::string fixed(double value, int digits);
/// "8.40e-04".
std::string scientific(double value);
/// A path as it is named from the current directory, where it lies below that.
std::string from_here(const std::string& path);
/// A word of a command as a POSIX shell reads it back: in quotes where it holds anything but plain
/// letters.
std::string shell_word(const std::string& word);
/// "412.0 MiB planned, 390.2 MiB measured (rank 2, the largest)".
/// "MFU 45.7 %".
std::string utilization_text(double utilization);
std::string peak_memory_text(const contract::PeakMemory& peak);
/// The largest GPU memory in use on any rank, in bytes; 0: not known.
int64_t most_gpu_memory(const Summary& summary);
/// "20 steps, 14.2 ms communication a step, 87 % of it hidden under compute".
std::string traced_rank_text(const TracedRank& rank);
/// "complete", "failed", "stopped", "stopped at once".
const char* outcome_text(Summary::Outcome outcome);
/// The block that ends a run.
std::string summary_text(const Summary& summary);
/// The line or lines that begin it.
std::string header_text(const RunHeader& header);
/// A notice as lines, each ending in a newline.
std::string notice_text(const Notice& notice);
/// "loss 2.1234  validation 2.3  ..." of what is known.
std::string measures_text(const Snapshot& snapshot);
/// "step 592/1600 (37 %)".
std::string step_text(const Snapshot& snapshot);
/// "loss 2.1234", "1,024 tokens/s"; empty for what is not known or not for people.
std::string figure_text(const contract::Figure& figure, const std::optional<double>& value);

}  // namespace trainyard::cli
