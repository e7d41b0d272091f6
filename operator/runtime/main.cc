#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "common/base/clock.h"
#include "common/io/open_files.h"
#include "common/log/log.h"
#include "common/worker_contract.h"
#include "control/coordinator/grpc_log.h"
#include "operator/kube/client.h"
#include "operator/kube/http_transport.h"
#include "operator/runtime/connection.h"
#include "operator/runtime/operator.h"
#include "operator/runtime/options.h"
#include "operator/runtime/stop_signals.h"
#include "operator/runtime/submit.h"

namespace {

namespace runtime = trainyard::operator_runtime;

int fail(const trainyard::Error& error, trainyard::Logger& logger) {
  logger.error("trainyard-operator ends", {{"error", error.message}});
  // What names no server, or one that is not there, is the configuration's fault.
  const bool missing = error.code == trainyard::ErrorCode::kNotFound;
  return missing ? trainyard::contract::kExitBadConfig
                 : trainyard::contract::exit_code_of(error.code);
}

trainyard::Result<runtime::JobEnd> submit(const runtime::SubmitOptions& options,
                                          const trainyard::Clock& clock,
                                          const std::stop_token& stop) {
  TRAINYARD_ASSIGN(const runtime::Connection server,
                   runtime::find_server(options.kubeconfig, options.context, clock));
  // No call ends with a signal: the job is still to be removed then.
  const trainyard::kube::Client client(*server.transport, clock, {});
  return runtime::submit(client, clock, options, server.config.ns, stop, std::cout);
}

int run(const std::vector<std::string>& arguments) {
  auto read = runtime::read_options(arguments, std::cout, std::cerr);
  if (const auto* ends = std::get_if<runtime::EndsAtOnce>(&read)) return ends->exit_code;
  const trainyard::SystemClock clock;
  if (const auto* job = std::get_if<runtime::SubmitOptions>(&read)) {
    const auto logger =
        trainyard::Logger::to_stderr(trainyard::LogLevel::kInfo, trainyard::LogFormat::kText);
    runtime::StopSignals signals;
    const std::jthread listening(
        [&](const std::stop_token& over) { signals.watch(over, *logger); });
    const auto end = submit(*job, clock, signals.stop());
    if (!end) return fail(end.error(), *logger);
    return *end == runtime::JobEnd::kComplete ? 0 : 1;
  }
  const auto& options = std::get<runtime::OperatorOptions>(read);
  const auto logger = trainyard::Logger::to_stderr(options.log_level, options.log_format);
  const trainyard::control::GrpcLog grpc_log(*logger);
  trainyard::raise_open_file_limit();
  runtime::StopSignals signals;  // before any thread, which inherit the mask
  const auto made = runtime::Operator::make(options, clock, *logger);
  if (!made) return fail(made.error(), *logger);
  const std::jthread listening([&](const std::stop_token& over) { signals.watch(over, *logger); });
  const trainyard::Status ended = (*made)->run(signals.stop());
  if (!ended) return fail(ended.error(), *logger);
  logger->info("stopped");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int exit_code = run({argv + 1, argv + argc});
  (void)trainyard::kube::await_network_idle(std::chrono::seconds(1));
  return exit_code;
}
