#include "cli/data_progress.h"

#include <iomanip>
#include <ostream>
#include <sstream>

#include "cli/run/terminal.h"
#include "common/log/text.h"

namespace trainyard::cli {
namespace {

constexpr size_t kFileBytesMax = 4096;

}  // namespace

void DataProgress::show(const data::PrepareProgress& progress) {
  const MonoTime now = clock_.mono();
  const Duration interval =
      on_terminal_ ? Duration(std::chrono::milliseconds(200)) : std::chrono::seconds(10);
  if (now - shown_ < interval || progress.bytes_total == 0) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const auto done = static_cast<double>(progress.bytes_done);
  const auto total = static_cast<double>(progress.bytes_total);
  const double rate = done / seconds;
  std::ostringstream line;
  line << std::fixed << std::setprecision(1) << progress.doing << ' ' << 100 * done / total
       << " % of " << total / 1e6 << " MB, " << rate / 1e6 << " MB/s, ETA " << std::setprecision(0)
       << (rate > 0 ? (total - done) / rate : 0) << " s, "
       << printable_text(progress.file, kFileBytesMax);
  if (on_terminal_) {
    // What wrapped could not be written over.
    const auto columns = static_cast<size_t>(terminal::size(STDERR_FILENO).columns);
    out_ << '\r' << terminal::kClearLine << line.str().substr(0, columns - 1) << std::flush;
    line_open_ = true;
  } else {
    out_ << line.str() << std::endl;
  }
}

void DataProgress::clear() {
  if (line_open_) out_ << '\r' << terminal::kClearLine << std::flush;
  line_open_ = false;
}

}  // namespace trainyard::cli
