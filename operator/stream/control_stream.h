#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "control/coordinator/coordinator.h"
#include "control/coordinator/grpc_port_transport.h"
#include "control/facts.h"
#include "control/observed.h"
#include "operator/kube/client.h"
#include "operator/stream/admitted_transport.h"
#include "operator/stream/tls_secret.h"

namespace trainyard::stream {

/// The control stream as a leader serves it: the port, its certificates, who is let in, and the
/// coordinator behind them (docs/concepts/control-stream.md). Before start() nothing listens and
/// nothing is known of any job. Thread-safe but for start().
class ControlStream final : public control::FactsSource, public control::MembershipSink {
 public:
  struct Options {
    const kube::Client* client = nullptr;  ///< required, as clock and logger; outlives this
    const Clock* clock = nullptr;
    Logger* logger = nullptr;
    std::string bind_address;  ///< ":9443"
    control::FrontBounds bounds;
    int64_t memory_bytes = 0;        ///< as GrpcPortTransport::Options
    std::vector<std::string> hosts;  ///< what agents connect to, for the certificate
    kube::ObjectName secret;
    /// The pod that this process runs in; its name empty: none, nobody is labelled.
    kube::ObjectName own_pod;
    /// As AdmittedTransport::Options.
    std::function<std::string(const TokenOwner& pod)> job_of;
    /// Called with each job that deserves a look of the brain; must not block.
    std::function<void(const control::JobKey&)> wake;
  };

  explicit ControlStream(Options options);
  /// Closes all streams; agents go on without.
  ~ControlStream() override;

  /// Begins to serve as the leader of this term (leaseTransitions), or of a later one where the
  /// Secret remembers higher ones. Once. Returns at once: what the port needs is sought until it is
  /// found, and kept in order from then on.
  void start(int64_t term);

  /// PEM of the authorities that agents are to trust; empty while the port is not served.
  std::string authorities() const;
  AdmittedTransport::Counts counts() const;
  /// To the port; zeroes while it is not served.
  control::Front::Counts connections() const { return transport_.connections(); }

  control::StreamFacts facts(const std::string& job_uid) const override;
  void publish(const control::MembershipOrder& order) override;
  void retire(const std::string& job_uid) override;

 private:
  void look_after(const std::stop_token& stop);
  Status settle();
  Status take_term();
  void job_changed(const std::string& job_uid);

  const Options options_;
  TlsSecret secret_;
  control::GrpcPortTransport transport_;
  // Made by start(), there once started_ says so.
  std::atomic<bool> started_ = false;
  std::unique_ptr<AdmittedTransport> admitted_;
  std::unique_ptr<control::Coordinator> coordinator_;

  mutable std::mutex mutex_;
  std::string authorities_;                      ///< guarded by mutex_
  std::map<std::string, control::JobKey> keys_;  ///< by job UID; guarded by mutex_
  // Of look_after() only:
  std::string last_error_;  ///< told once
  int64_t lease_term_ = 0;
  bool has_term_ = false;

  std::jthread coordinating_;
  std::jthread looking_after_;
};

}  // namespace trainyard::stream
