#include "control/local/exit_json.h"

#include <string>

#include <nlohmann/json.hpp>

namespace trainyard::control::local {

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
  if (exit.finished_at) object["finishedAtNanos"] = exit.finished_at->time_since_epoch().count();
  return object;
}

ContainerExit exit_from_json(const nlohmann::json& object) {
  ContainerExit exit;
  exit.container = object.at("container").get<std::string>();
  exit.exit_code = object.at("exitCode").get<int>();
  exit.reason = object.at("reason").get<std::string>();
  exit.message = object.at("message").get<std::string>();
  if (object.contains("signal")) exit.signal = object["signal"].get<int>();
  if (object.contains("rank")) exit.rank = object["rank"].get<int>();
  if (object.contains("lastStep")) exit.last_step = object["lastStep"].get<int64_t>();
  if (object.contains("finishedAtNanos")) {
    exit.finished_at = Time(Duration(object["finishedAtNanos"].get<int64_t>()));
  }
  return exit;
}

}  // namespace trainyard::control::local
