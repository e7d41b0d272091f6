#include "control/coordinator/exit_log.h"

namespace trainyard::control {

void ExitLog::note(const std::string& pod_uid, const RankExit& exit, MonoTime now) {
  Told& told = told_.try_emplace(pod_uid, Told{exit.pod_name, now}).first->second;
  if (told.lines >= kLinesOfAPod) {
    ++told.untold;
    return;
  }
  ++told.lines;
  logger_.info("rank exited", {{"pod", exit.pod_name},
                               {"generation", exit.generation},
                               {"rank", exit.rank},
                               {"exit_code", exit.exit_code},
                               {"signal", exit.signal},
                               {"expected", exit.expected}});
}

void ExitLog::tell_rest(MonoTime now) {
  for (auto entry = told_.begin(); entry != told_.end();) {
    const Told& told = entry->second;
    if (now - told.since < kWhile) {
      ++entry;
      continue;
    }
    if (told.untold > 0) {
      logger_.warning("more ranks exited than are logged one by one",
                      {{"pod", told.pod_name}, {"others", told.untold}});
    }
    entry = told_.erase(entry);
  }
}

}  // namespace trainyard::control
