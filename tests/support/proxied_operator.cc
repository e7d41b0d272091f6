#include "tests/support/proxied_operator.h"

#include <csignal>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/plane_faults.h"

namespace trainyard::testing_support {

ProxiedOperator::ProxiedOperator(const ControlPlane& plane, const nlohmann::json& kubeconfig,
                                 std::filesystem::path folder, std::string name_space,
                                 Options options)
    : folder_(std::move(folder)),
      namespace_(std::move(name_space)),
      options_(std::move(options)),
      proxy_(std::make_unique<FaultProxy>(
          FaultProxy::Options{.server_port = plane_port(plane.folder(), "api"),
                              .server_authority = plane.folder() / "pki/ca.crt"})) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ / "proxy-ca.crt") << proxy_->authority();
  nlohmann::json config = kubeconfig;
  config["clusters"][0]["cluster"] = {{"server", proxy_->url()},
                                      {"certificate-authority", "proxy-ca.crt"}};
  std::ofstream(folder_ / "kubeconfig") << config.dump(2);
  proxy_->on_crash([this] { kill(); });
}

ProxiedOperator::~ProxiedOperator() = default;

void ProxiedOperator::start() {
  const std::lock_guard lock(mutex_);
  start_locked();
}

void ProxiedOperator::start_locked() {
  processes_.push_back(std::make_unique<OperatorProcess>(
      folder_ / "kubeconfig", folder_ / fmt::format("operator-{}", processes_.size() + 1),
      std::vector<std::string>{namespace_}, options_.flags));
}

void ProxiedOperator::kill() {
  const std::lock_guard lock(mutex_);
  ChildProcess& process = processes_.back()->process();
  process.signal(SIGKILL);
  const auto end = process.wait(std::chrono::seconds(60));
  if (!end || end->signal != SIGKILL) {
    complaint_ += fmt::format("operator {} ended by itself with code {}\n", processes_.size(),
                              end ? end->exit_code : -1);
  }
  ++kills_;
  if (options_.revival == Revival::kAtOnce) start_locked();
}

std::optional<ChildEnd> ProxiedOperator::end() {
  const std::lock_guard lock(mutex_);
  return end_locked();
}

std::optional<ChildEnd> ProxiedOperator::end_locked() {
  return processes_.back()->process().wait(std::chrono::milliseconds(0));
}

std::string ProxiedOperator::stop() {
  const std::lock_guard lock(mutex_);
  const bool stays_down = options_.revival == Revival::kNone && end_locked();
  const int code = stays_down ? 0 : processes_.back()->stop();
  if (code != 0) complaint_ += fmt::format("the operator ended with code {}, wanted 0\n", code);
  return std::exchange(complaint_, std::string());
}

int ProxiedOperator::kills() const {
  const std::lock_guard lock(mutex_);
  return kills_;
}

std::string ProxiedOperator::identity() const {
  const std::lock_guard lock(mutex_);
  return processes_.empty() ? "" : processes_.back()->said("starting", "identity");
}

bool ProxiedOperator::is_ready() const {
  const std::lock_guard lock(mutex_);
  return !processes_.empty() && processes_.back()->page("/readyz").status == 200;
}

std::string ProxiedOperator::log() const {
  const std::lock_guard lock(mutex_);
  std::string all;
  for (const auto& process : processes_)
    all += process->log();
  return all;
}

}  // namespace trainyard::testing_support
