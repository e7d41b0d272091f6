#include <iostream>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "common/worker_contract.h"
#include "operator/runtime/operator.h"
#include "operator/runtime/options.h"
#include "operator/runtime/stop_signals.h"

int main(int argc, char** argv) {
  namespace runtime = trainyard::operator_runtime;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  auto read = runtime::read_options(arguments, std::cout, std::cerr);
  if (const auto* ends = std::get_if<runtime::EndsAtOnce>(&read)) return ends->exit_code;
  const auto& options = std::get<runtime::OperatorOptions>(read);
  const auto logger = trainyard::Logger::to_stderr(options.log_level, options.log_format);
  const auto fail = [&](const trainyard::Error& error) {
    logger->error("trainyard-operator ends", {{"error", error.message}});
    // What names no server, or one that is not there, is the configuration's fault.
    const bool missing = error.code == trainyard::ErrorCode::kNotFound;
    return missing ? trainyard::contract::kExitBadConfig
                   : trainyard::contract::exit_code_of(error.code);
  };
  const trainyard::SystemClock clock;
  runtime::StopSignals signals;  // before any thread, which inherit the mask
  const auto made = runtime::Operator::make(options, clock, *logger);
  if (!made) return fail(made.error());
  const std::jthread listening([&](const std::stop_token& over) { signals.watch(over, *logger); });
  const trainyard::Status ended = (*made)->run(signals.stop());
  if (!ended) return fail(ended.error());
  logger->info("stopped");
  return 0;
}
