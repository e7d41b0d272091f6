#include "agent/rank_log.h"

#include <fcntl.h>
#include <span>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "common/io/file.h"
#include "common/log/text.h"

namespace trainyard::agent {

RankLog::RankLog(std::filesystem::path path, int64_t limit_bytes)
    : path_(std::move(path)), limit_bytes_(limit_bytes) {
  open();
}

RankLog::RankLog(UniqueFd stream, std::string prefix)
    : prefix_(std::move(prefix)), file_(std::move(stream)) {}

RankLog RankLog::to_standard_output(std::string prefix) {
  return {UniqueFd(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0)), std::move(prefix)};
}

void RankLog::open() {
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  struct stat status {};
  size_bytes_ = file_.valid() && ::fstat(file_.get(), &status) == 0 ? status.st_size : 0;
}

void RankLog::add_line(std::string_view line) {
  last_.push_back(printable_text(line, kMaxLastLineBytes));
  if (last_.size() > kMaxLastLines) last_.pop_front();
  if (!file_.valid()) return;
  std::string whole = prefix_;
  whole.append(line).push_back('\n');
  if (!path_.empty() && size_bytes_ > 0 &&
      size_bytes_ + static_cast<int64_t>(whole.size()) > limit_bytes_) {
    ::rename(path_.c_str(), (path_.string() + ".1").c_str());
    open();
    if (!file_.valid()) return;
  }
  if (!write_all(file_.get(), std::as_bytes(std::span(whole)), path_.string())) {
    file_.reset();  // a full disk must not end the training
    return;
  }
  size_bytes_ += static_cast<int64_t>(whole.size());
}

}  // namespace trainyard::agent
