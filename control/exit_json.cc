#include "control/exit_json.h"

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include "common/text/whole_number.h"

namespace trainyard::control {

nlohmann::json to_json(const ContainerExit& exit) {
  const size_t cut =
      exit.message.size() > kMaxExitMessageBytes ? exit.message.size() - kMaxExitMessageBytes : 0;
  nlohmann::json object = {{"container", exit.container},
                           {"exitCode", exit.exit_code},
                           {"reason", exit.reason},
                           {"message", exit.message.substr(cut)}};
  if (exit.signal) object["signal"] = *exit.signal;
  if (exit.rank) object["rank"] = *exit.rank;
  if (exit.last_step) object["lastStep"] = *exit.last_step;
  if (exit.asked) object["asked"] = *exit.asked;
  if (exit.finished_at) object["finishedAtNanos"] = exit.finished_at->time_since_epoch().count();
  return object;
}

std::string to_line(const ContainerExit& exit, size_t limit_bytes) {
  ContainerExit told = exit;
  while (true) {
    // Lines of a foreign program may hold any bytes; what is no UTF-8 is replaced.
    std::string line = to_json(told).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (line.size() <= limit_bytes || told.message.empty()) return line;
    // Escapes make a letter up to six bytes: what is over is taken from the oldest.
    const size_t over = line.size() - limit_bytes;
    told.message.erase(0, std::min(told.message.size(), std::max<size_t>(1, over / 6)));
  }
}

ContainerExit exit_from_json(const nlohmann::json& object) {
  ContainerExit exit;
  exit.container = object.at("container").get<std::string>();
  exit.exit_code = static_cast<int>(whole_number(object.at("exitCode")));
  exit.reason = object.at("reason").get<std::string>();
  exit.message = object.at("message").get<std::string>();
  if (object.contains("signal")) exit.signal = static_cast<int>(whole_number(object["signal"]));
  if (object.contains("rank")) exit.rank = static_cast<int>(whole_number(object["rank"]));
  if (object.contains("asked")) exit.asked = object["asked"].get<bool>();
  if (object.contains("lastStep")) exit.last_step = whole_number(object["lastStep"]);
  if (object.contains("finishedAtNanos")) {
    exit.finished_at = Time(Duration(whole_number(object["finishedAtNanos"])));
  }
  return exit;
}

}  // namespace trainyard::control
