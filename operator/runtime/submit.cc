#include "operator/runtime/submit.h"

#include <optional>
#include <ostream>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/wait.h"
#include "common/io/input.h"
#include "common/text/document.h"
#include "operator/cluster/members.h"

namespace trainyard::operator_runtime {
namespace {

using cluster::text_at;
using nlohmann::json;

constexpr int64_t kManifestBytesMax = 1 << 20;
/// An operator that is there has written a status long before, also right after it has begun.
constexpr std::chrono::seconds kFirstStatus{10};
constexpr char kNoStatus[] = "without a status from an operator";

/// The manifest with its namespace written in. Whether it is a good job, the server says.
Result<json> read_job(const SubmitOptions& options, const std::string& ns) {
  TRAINYARD_ASSIGN(const std::string text, read_input(options.file, kManifestBytesMax));
  const text::Document document = text::parse(text);
  if (!document.problems.empty()) {
    const text::Problem& problem = document.problems.front();
    return Error{ErrorCode::kInvalidConfig, options.file + ":" + std::to_string(problem.line) +
                                                ": found " + problem.found + ", wanted " +
                                                problem.wanted};
  }
  json job = json::parse(text::to_json(document.root));
  const bool named = job.is_object() && text_at(job, "kind") == "TrainingJob" &&
                     job.contains("metadata") && job["metadata"].is_object() &&
                     !text_at(job["metadata"], "name").empty();
  if (!named) {
    return Error{ErrorCode::kInvalidConfig,
                 options.file + ": wanted one TrainingJob with metadata.name"};
  }
  json& metadata = job["metadata"];
  if (!options.ns.empty()) {
    metadata["namespace"] = options.ns;
  } else if (text_at(metadata, "namespace").empty()) {
    metadata["namespace"] = ns;
  }
  return job;
}

/// One job on its way.
class Submission {
 public:
  Submission(const kube::Client& client, const Clock& clock, const SubmitOptions& options, json job,
             std::stop_token stop, std::ostream& out)
      : client_(client),
        clock_(clock),
        options_(options),
        job_(std::move(job)),
        name_{job_["metadata"]["namespace"], job_["metadata"]["name"]},
        stop_(std::move(stop)),
        out_(out),
        deadline_(clock.mono() + options.timeout) {}

  Result<JobEnd> run() {
    TRAINYARD_TRY(make_way());
    const auto made = client_.create(kube::kTrainingJobs, name_.ns, job_,
                                     {.field_validation = kube::FieldValidation::kStrict});
    if (!made) return made.error().to_error("create " + title());
    uid_ = text_at((*made)["metadata"], "uid");
    out_ << title() << ": created" << std::endl;
    Result<JobEnd> end = wait_for_end();
    if (!options_.keep) TRAINYARD_TRY(remove(uid_));
    return end;
  }

 private:
  std::string title() const { return "TrainingJob " + name_.ns + "/" + name_.name; }

  Status remove(const std::string& uid) const {
    const auto gone = client_.remove(
        kube::kTrainingJobs, name_,
        {.preconditions = {.uid = uid}, .propagation = kube::Propagation::kBackground});
    if (gone || gone.error().reason == kube::Reason::kNotFound) return {};
    return gone.error().to_error("delete " + title());
  }

  /// The job as it is; nothing where there is none. Asks again while the server is away.
  Result<std::optional<json>> look() const {
    while (true) {
      auto seen = client_.get(kube::kTrainingJobs, name_);
      if (seen) return std::optional<json>(*std::move(seen));
      if (seen.error().reason == kube::Reason::kNotFound) return std::optional<json>();
      const Error error = seen.error().to_error("get " + title());
      if (error.code != ErrorCode::kUnavailable && error.code != ErrorCode::kDeadline) return error;
      TRAINYARD_TRY(pause(error.message));
    }
  }

  /// Waits until it is worth another look; `state` is what the time-out tells.
  Status pause(const std::string& state) const {
    if (clock_.mono() >= deadline_) {
      return Error{ErrorCode::kDeadline, title() + ": waited " +
                                             std::to_string(options_.timeout.count()) +
                                             " s for its end; it is still: " + state};
    }
    if (wait_for_stop(stop_, options_.period)) {
      return Error{ErrorCode::kAborted, title() + ": stopped while waiting for its end"};
    }
    return {};
  }

  /// Returns when there is no job of the name.
  Status make_way() const {
    std::string removed;
    while (true) {
      TRAINYARD_ASSIGN(const std::optional<json> there, look());
      if (!there) return {};
      if (!options_.replace) {
        return Error{ErrorCode::kAlreadyExists,
                     title() + " exists already: delete it, or pass --replace"};
      }
      const std::string uid = text_at((*there)["metadata"], "uid");
      if (uid != removed) TRAINYARD_TRY(remove(uid));
      removed = uid;
      TRAINYARD_TRY(pause("the previous job, which is being deleted"));
    }
  }

  Result<JobEnd> wait_for_end() const {
    std::string told;
    const MonoTime made = clock_.mono();
    while (true) {
      TRAINYARD_ASSIGN(const std::optional<json> job, look());
      if (!job || text_at((*job)["metadata"], "uid") != uid_) {
        return Error{ErrorCode::kConflict, title() + " was deleted by somebody else"};
      }
      const json status = job->value("status", json::object());
      std::string phase = text_at(status, "phase");
      const bool early = phase.empty() && clock_.mono() - made < kFirstStatus;
      if (phase.empty()) phase = kNoStatus;
      if (phase != told && !early) {
        out_ << title() << ": " << phase << std::endl;
        told = phase;
      }
      for (const json& condition : status.value("conditions", json::array())) {
        const std::string type = text_at(condition, "type");
        if (text_at(condition, "status") != "True" || (type != "Complete" && type != "Failed")) {
          continue;
        }
        out_ << title() << ": " << type << ": " << text_at(condition, "message") << std::endl;
        return type == "Complete" ? JobEnd::kComplete : JobEnd::kFailed;
      }
      TRAINYARD_TRY(pause(phase));
    }
  }

  const kube::Client& client_;
  const Clock& clock_;
  const SubmitOptions& options_;
  const json job_;
  const kube::ObjectName name_;
  const std::stop_token stop_;
  std::ostream& out_;
  const MonoTime deadline_;
  std::string uid_;
};

}  // namespace

Result<JobEnd> submit(const kube::Client& client, const Clock& clock, const SubmitOptions& options,
                      const std::string& ns, const std::stop_token& stop, std::ostream& out) {
  TRAINYARD_ASSIGN(json job, read_job(options, ns));
  return Submission(client, clock, options, std::move(job), stop, out).run();
}

}  // namespace trainyard::operator_runtime
