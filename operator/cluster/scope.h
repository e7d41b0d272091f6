#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/log/log.h"
#include "control/observed.h"
#include "operator/cache/reflector.h"
#include "operator/cache/reflector_runner.h"
#include "operator/cache/store.h"
#include "operator/cluster/gone_pods.h"
#include "operator/cluster/listed_pods.h"
#include "operator/cluster/own_writes.h"
#include "operator/cluster/views.h"
#include "operator/kube/client.h"

namespace trainyard::cluster {

/// Names of the indexes over pods.
inline constexpr char kPodsByJob[] = "job-uid";
inline constexpr char kPodsByNode[] = "node";

/// What the caches tell and need.
struct ScopeContext {
  const kube::Client* client = nullptr;
  const Clock* clock = nullptr;
  Logger* logger = nullptr;
  ListedPods* listed_pods = nullptr;
  GonePods* gone_pods = nullptr;
  cache::ReflectorRunner* runner = nullptr;
  std::function<double()> random;
  std::function<void(const control::JobKey&)> changed;  ///< a job, or pods of it
  /// What stood beside a job's pods is there no more, or a list shows none beside them.
  std::function<void(const kube::Resource&, const control::JobKey&, const std::string& job_uid)>
      companion_gone;
  std::function<void(const JobView&)> job_gone;  ///< as it was last; before `changed`
};

/// What a reflector keeps in view.
struct Watched {
  kube::Resource resource;
  std::string ns;  ///< empty: all
  std::string label_selector;
  cache::Right right = cache::Right::kNeeded;
  kube::Parts parts = kube::Parts::kAll;
};

/// A reflector that the context's runner keeps going.
class Watching {
 public:
  Watching(const ScopeContext& context, cache::Sink& sink, const Watched& watched);

  void start() { runner_.start(reflector_); }
  /// Returns when it has ended.
  void stop() { runner_.stop(reflector_); }
  const cache::Reflector& reflector() const { return reflector_; }

 private:
  cache::ReflectorRunner& runner_;
  cache::Reflector reflector_;
};

/// Which objects of one kind stand beside jobs' pods. Whoever may not see them goes on without:
/// what somebody takes away then comes back with the next generation.
class Beside {
 public:
  /// `jobs` outlives it.
  Beside(const ScopeContext& context, const std::string& ns, const kube::Resource& resource,
         const cache::Store<JobView>& jobs);

  Watching& watching() { return watching_; }
  cache::Store<CompanionView>& objects() { return objects_; }

 private:
  cache::Handler<CompanionView> handler();

  const ScopeContext& context_;
  const kube::Resource resource_;
  const cache::Store<JobView>& jobs_;
  cache::Store<CompanionView> objects_;
  Watching watching_;
};

/// The caches of one namespace, or of all where `ns` is empty: TrainingJobs, their pods and what
/// stands beside these. The context outlives it.
class Scope {
 public:
  Scope(const ScopeContext& context, const std::string& ns);

  const std::string& ns() const { return ns_; }
  cache::Store<JobView>& jobs() { return jobs_; }
  cache::Store<PodView>& pods() { return pods_; }
  /// Of these caches alone: a list of another namespace says nothing about them.
  OwnWrites& own_writes() { return own_writes_; }
  bool is_filled() const { return jobs_.synced() && pods_.synced(); }
  /// Whether it must be filled before work begins.
  bool is_awaited() const { return awaited_; }
  void do_not_await() { awaited_ = false; }
  std::vector<Watching*> watchings();
  std::array<Beside, 3>& beside() { return beside_; }

 private:
  cache::Handler<JobView> job_handler();
  cache::Handler<PodView> pod_handler();
  void note_gone(const PodView& pod) const;

  const ScopeContext& context_;
  const std::string ns_;
  std::atomic<bool> awaited_ = true;
  OwnWrites own_writes_;
  cache::Store<JobView> jobs_;
  cache::Store<PodView> pods_;
  Watching job_watching_;
  Watching pod_watching_;
  std::array<Beside, 3> beside_;
};

}  // namespace trainyard::cluster
