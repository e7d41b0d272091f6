#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "control/coordinator/control_transport.h"
#include "operator/kube/token_bucket.h"
#include "operator/stream/token_review.h"

namespace trainyard::stream {

/// Lets only those streams through whose agents are who they say. A token that names no pod of a
/// job, by what it claims, is refused at once; any other is reviewed once per stream, and what its
/// owner says of itself is held against the review. Until then nothing of a stream is seen behind
/// this. Streams that are refused are closed; their agents try again, which is right where only our
/// view was late. A pod has one stream, its newest (connections are numbered as they come); a pod
/// that says more than agents say, on however many streams one after another, is closed, and not
/// let in again for a while. Thread-safe as ControlTransport.
class AdmittedTransport final : public control::ControlTransport {
 public:
  struct Options {
    control::ControlTransport* inner = nullptr;  ///< required; outlives this
    Logger* logger = nullptr;                    ///< required; outlives this
    const Clock* clock = nullptr;                ///< required; outlives this
    /// Whose a token claims to be, unverified. Called by the taking thread for each stream.
    std::function<Result<TokenOwner>(const std::string& token)> claims;
    /// Who a token belongs to; may take a second. Called from kReviewers threads.
    std::function<Result<TokenOwner>(const std::string& token)> review;
    /// UID of the TrainingJob that the pod belongs to; empty for one that is nobody's, or not the
    /// pod that has the name now.
    std::function<std::string(const TokenOwner& pod)> job_of;
    /// Called with each stream that is let in, before anything of it is seen. Optional.
    std::function<void(control::ConnectionId)> on_admitted;
  };
  struct Counts {
    int64_t open = 0;      ///< streams let through, not closed
    int64_t admitted = 0;  ///< ever
    int64_t refused = 0;   ///< ever
    /// Pods of which it is known what they have said of late.
    int64_t known_pods = 0;
  };

  /// Reviews under way at once.
  static constexpr int kReviewers = 8;
  /// Reviews that the API server is asked for: a leader that takes over a thousand agents asks for
  /// as many at once, and whoever shows tokens without end has no more than this of the server.
  static constexpr double kReviewsPerSecond = 100;
  static constexpr int kReviewsAtOnce = 1000;
  /// Streams that wait for their review; more are closed at once, and come again. By 80 KB each
  /// they fit the chart's memory limit beside as many that were let in.
  static constexpr size_t kMaxWaiting = 1024;
  /// Of them, those of one caller, which is what claims to be one pod and comes from one address:
  /// an agent has one, and perhaps one that it lost.
  static constexpr int kMaxWaitingOfCaller = 4;
  /// How often a caller may come; an agent tries again every 0.2 to 5 s.
  static constexpr double kCallsPerSecond = 1;
  static constexpr int kCallsAtOnce = 10;
  /// Messages kept of a stream that waits, its newest heartbeats among them; an agent says a
  /// handful.
  static constexpr size_t kMaxHeld = 64;
  /// What these may take of memory: a thousand ranks' addresses fit.
  static constexpr int64_t kMaxHeldBytes = 256 << 10;
  /// Of all streams that wait: nobody is known yet who fills it.
  static constexpr int64_t kMaxHeldBytesOfAll = 64 << 20;
  /// What one pod may say: an agent has a heartbeat every 100 ms, and on a bad day an end and a
  /// warning of each of its ranks (1,024 at most).
  static constexpr double kMessagesPerSecond = 100;
  static constexpr int kMessagesAtOnce = 4096;
  /// The same on the wire: an agent of 1,024 ranks has 1.5 MB a second.
  static constexpr double kBytesPerSecond = 2 << 20;
  /// A message that takes more memory than so many bytes for each of its own counts as if it were
  /// as long as its memory says.
  static constexpr int64_t kMemoryPerByte = 8;
  static constexpr int kBytesAtOnce = 16
                                      << 20;  ///< 10 MiB are the ends of 1,024 ranks, words and all
  /// What a stream that waits may say at once; then as one that is let in.
  static constexpr int kMessagesAtOnceBeforeReview = 256;
  /// How long nobody comes in of a pod that said more.
  static constexpr std::chrono::seconds kSilence{30};
  /// What is known of pods that have gone is looked through this often.
  static constexpr std::chrono::seconds kForgettingInterval{10};
  /// Refusals that are logged one by one; of more only the number is.
  static constexpr double kRefusalsLoggedPerSecond = 1;
  static constexpr int kRefusalsLoggedAtOnce = 20;

  explicit AdmittedTransport(Options options);
  ~AdmittedTransport() override;

  std::vector<control::ServerEvent> take(Duration timeout) override;
  void interrupt() override;
  Status send(control::ConnectionId connection, const coordination::ToAgent& message) override;
  Status send_with_tail(control::ConnectionId connection, const coordination::ToAgent& message,
                        std::shared_ptr<const std::string> tail) override;
  void close(control::ConnectionId connection) override;

  Counts counts() const;

 private:
  using Id = control::ConnectionId;
  struct Guest {
    bool admitted = false;
    TokenOwner owner;
    std::string job_uid;
    std::string token;                       ///< secret
    std::vector<control::ServerEvent> held;  ///< before the verdict
    int64_t held_bytes = 0;
    kube::TokenBucket before_review{kMessagesPerSecond, kMessagesAtOnceBeforeReview};
  };
  /// How much a pod has said of late, on whichever streams.
  struct Voice {
    kube::TokenBucket allowance{kMessagesPerSecond, kMessagesAtOnce};
    kube::TokenBucket bytes{kBytesPerSecond, kBytesAtOnce};
    MonoTime silent_until{};
  };
  struct Verdict {
    Id connection = 0;
    Result<TokenOwner> owner;
  };
  struct Waiting {
    std::string token;
    std::string caller;
  };

  void review_tokens(const std::stop_token& stop);
  void settle(Verdict verdict, std::vector<control::ServerEvent>& out);
  void pass(control::ServerEvent event, std::vector<control::ServerEvent>& out);
  void pass_message(Guest& guest, control::ServerEvent event,
                    std::vector<control::ServerEvent>& out);
  void admit(Id connection, Guest& guest, std::vector<control::ServerEvent>& out);
  void await_review(Id connection, std::string token, const std::string& peer);
  std::string enqueue(Id connection, Waiting waiting);
  Waiting dequeue_locked(std::map<Id, Waiting>::iterator place);
  void hold(Guest& guest, control::ServerEvent event);
  bool is_silenced(const std::string& token) const;
  void forget_the_quiet();
  void expel(Id connection, Guest& guest, const std::string& why,
             std::vector<control::ServerEvent>& out);
  void refuse(Id connection, const std::string& why);
  void forget(Id connection);
  std::vector<Verdict> take_verdicts();

  const Options options_;
  // Of the taking thread only:
  std::map<Id, Guest> guests_;
  std::map<std::string, Id> stream_of_pod_;         ///< by UID; of admitted guests
  std::map<std::string, Voice> voices_;             ///< by UID of pod; of every admitted guest's
  std::map<std::string, MonoTime> silenced_;        ///< until when, by token: these need no review
  std::map<std::string, kube::TokenBucket> calls_;  ///< that a caller may make, by caller
  MonoTime next_forgetting_{};
  int64_t held_bytes_ = 0;  ///< of all guests
  kube::TokenBucket refusals_logged_{kRefusalsLoggedPerSecond, kRefusalsLoggedAtOnce};
  int64_t refusals_untold_ = 0;

  std::mutex mutex_;
  std::condition_variable_any waiting_changed_;
  std::map<Id, Waiting> waiting_;                 ///< the oldest first; guarded by mutex_
  std::map<std::string, int> waiting_of_caller_;  ///< how many of those; guarded by mutex_
  std::vector<Verdict> verdicts_;                 ///< guarded by mutex_
  kube::TokenBucket reviews_{kReviewsPerSecond, kReviewsAtOnce};
  std::atomic<int64_t> open_ = 0;
  std::atomic<int64_t> admitted_ = 0;
  std::atomic<int64_t> refused_ = 0;
  std::atomic<int64_t> known_pods_ = 0;
  std::vector<std::jthread> reviewers_;  ///< last: ends first
};

}  // namespace trainyard::stream
