#include "worker/rank/rank.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <pthread.h>
#include <signal.h>
#include <utility>

#include "common/api/decode.h"
#include "common/io/build_id.h"
#include "common/io/file.h"
#include "common/io/open_files.h"
#include "common/layout/mesh.h"
#include "common/worker_contract.h"
#include "worker/comm/factory.h"
#include "worker/rank/agent_link.h"
#include "worker/rank/train_loop.h"
#include "worker/stacks/stacks.h"
#include "worker/trace/trace_file.h"

namespace trainyard::engine {
namespace {

namespace contract = trainyard::contract;

/// Until the whole generation listens; the agent's own start-up limit is far below.
constexpr std::chrono::minutes kStartTimeout{30};
/// How long peers may be silent where nobody else judges them.
constexpr std::chrono::seconds kPeerTimeout{30};
/// Engine configurations larger than this are refused.
constexpr int64_t kMaxConfigBytes = 1 << 20;

std::string text_from_environment(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before any thread
  return value != nullptr ? value : otherwise;
}

Result<int64_t> number_from_environment(const char* name, int64_t otherwise) {
  const std::string text = text_from_environment(name);
  if (text.empty()) return otherwise;
  char* end = nullptr;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0' || value < -1 || value > INT32_MAX) {
    return Error{ErrorCode::kInvalidConfig, "environment " + std::string(name) + ": found '" +
                                                text + "', wanted a whole number"};
  }
  return value;
}

comm::TransportKind transport_kind(api::Transport transport) {
  switch (transport) {
    case api::Transport::kShm:
      return comm::TransportKind::kShm;
    case api::Transport::kTcp:
      return comm::TransportKind::kTcp;
    case api::Transport::kLocal:
      return comm::TransportKind::kLocal;
    default:
      return comm::TransportKind::kAuto;
  }
}

struct Identity {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t local_rank = 0;
  int64_t local_world = 1;
  int64_t generation = 1;
  int agent_fd = -1;
  int progress_fd = -1;
  int memory_fd = -1;
};

Result<Identity> read_identity() {
  Identity id;
  TRAINYARD_ASSIGN(id.rank, number_from_environment(contract::kEnvRank, 0));
  TRAINYARD_ASSIGN(id.world, number_from_environment(contract::kEnvWorldSize, 1));
  TRAINYARD_ASSIGN(id.local_rank, number_from_environment(contract::kEnvLocalRank, 0));
  TRAINYARD_ASSIGN(id.local_world, number_from_environment(contract::kEnvLocalWorldSize, 1));
  TRAINYARD_ASSIGN(id.generation, number_from_environment(contract::kEnvGeneration, 1));
  TRAINYARD_ASSIGN(const int64_t agent_fd, number_from_environment(contract::kEnvAgentFd, -1));
  TRAINYARD_ASSIGN(const int64_t progress_fd,
                   number_from_environment(contract::kEnvProgressFd, -1));
  id.agent_fd = static_cast<int>(agent_fd);
  id.progress_fd = static_cast<int>(progress_fd);
  TRAINYARD_ASSIGN(const int64_t memory_fd, number_from_environment(contract::kEnvMemoryFd, -1));
  id.memory_fd = static_cast<int>(memory_fd);
  if (id.world < 1 || id.rank < 0 || id.rank >= id.world) {
    return Error{ErrorCode::kInvalidConfig, "environment RANK: found " + std::to_string(id.rank) +
                                                ", wanted 0 to " + std::to_string(id.world - 1) +
                                                " (WORLD_SIZE " + std::to_string(id.world) + ")"};
  }
  if (id.world > 1 && id.agent_fd < 0) {
    return Error{ErrorCode::kInvalidConfig,
                 "environment WORLD_SIZE: found " + std::to_string(id.world) + " without " +
                     contract::kEnvAgentFd + "; several ranks are started by trainyard-agent"};
  }
  return id;
}

Result<api::EngineSpec> read_engine_spec() {
  const std::string path = text_from_environment(contract::kEnvEngineConfig);
  if (path.empty()) {
    return Error{ErrorCode::kInvalidConfig, std::string("environment ") +
                                                contract::kEnvEngineConfig +
                                                ": not set, wanted the path of an engine "
                                                "configuration; start ranks with `trainyard run`"};
  }
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  return api::decode_engine(text, {.file = path});
}

Result<api::CheckpointPolicy> read_checkpoint_policy() {
  const std::string path = text_from_environment(contract::kEnvCheckpointPolicy);
  if (path.empty()) return api::CheckpointPolicy{};
  TRAINYARD_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  return api::decode_checkpoint_policy(text, {.file = path});
}

Result<std::chrono::seconds> peer_timeout() {
  TRAINYARD_ASSIGN(const int64_t seconds,
                   number_from_environment(contract::kEnvPeerTimeout, kPeerTimeout.count()));
  return std::chrono::seconds(std::max<int64_t>(1, seconds));
}

/// Meets the peers: listens, reports the address, waits for the table.
Result<std::unique_ptr<comm::Communicator>> meet(const Identity& id, AgentLink& link,
                                                 const api::EngineSpec& spec,
                                                 const std::string& job_uid,
                                                 contract::ResumePlan& resume) {
  comm::Options options{.rank = static_cast<int>(id.rank),
                        .endpoints = {{.rank = 0}},
                        .generation = id.generation,
                        .job_uid = job_uid};
  TRAINYARD_ASSIGN(options.deadline, peer_timeout());
  for (const int64_t rank : spec.parallelism.ring_order)
    options.ring_order.push_back(static_cast<int>(rank));
  const comm::TransportKind kind = transport_kind(spec.runtime.transport);
  if (id.agent_fd < 0) {
    resume = {.generation = id.generation};
    return comm::make_communicator(kind, options, comm::Listener());
  }
  TRAINYARD_ASSIGN(comm::Listener listener,
                   comm::Listener::bind(text_from_environment(contract::kEnvHost, "127.0.0.1")));
  TRAINYARD_TRY(link.send(contract::encode(contract::Listening{.address = listener.address()})));
  TRAINYARD_ASSIGN(const contract::Start start, link.wait_start(kStartTimeout));
  options.generation = start.generation;
  options.endpoints.clear();
  for (const contract::RankEntry& entry : start.ranks) {
    options.endpoints.push_back(
        {.rank = entry.rank, .host_id = entry.host_id, .address = entry.address});
  }
  options.key = start.key;
  options.build = own_build_id();
  resume = start.resume;
  return comm::make_communicator(kind, options, std::move(listener));
}

/// Names the ranks that a collective waited for in vain. Best effort: the agent sees this rank's
/// exit in any case.
void report_lost_peers(AgentLink& link, const comm::Groups& groups, const Error& error) {
  if (error.code != ErrorCode::kPeerLost) return;
  for (const int rank : groups.lost_ranks()) {
    (void)link.send(contract::encode(contract::PeerLost{.rank = rank, .message = error.message}));
  }
}

/// What TRAINYARD_TRACE_DIR asks for; null without it.
Result<std::unique_ptr<trace::Recorder>> make_recorder() {
  TRAINYARD_ASSIGN(const int64_t steps,
                   number_from_environment(contract::kEnvTraceSteps, contract::kTraceStepsDefault));
  if (text_from_environment(contract::kEnvTraceDir).empty()) {
    return std::unique_ptr<trace::Recorder>();
  }
  if (steps < 1 || steps > contract::kTraceStepsMax) {
    return Error{ErrorCode::kInvalidConfig, std::string("environment ") + contract::kEnvTraceSteps +
                                                ": found " + std::to_string(steps) +
                                                ", wanted 1 to " +
                                                std::to_string(contract::kTraceStepsMax)};
  }
  return std::make_unique<trace::Recorder>(steps);
}

/// A trace is for people: where it cannot be written the run's end is the same.
void leave_trace(const trace::Recorder* recorder, const TrainContext& context, int64_t rank) {
  if (recorder == nullptr) return;
  const Status written = trace::write_rank_trace(
      text_from_environment(contract::kEnvTraceDir),
      {.rank = static_cast<int>(rank), .generation = context.resume.generation},
      recorder->newest());
  if (!written) context.log->warning("no trace: " + written.error().message);
}

/// Tells why a rank ends, and by which exit code.
int leave_with(Logger& log, const Identity& id, const Error& error) {
  log.error("rank failed",
            {{"rank", id.rank}, {"kind", name_of(error.code)}, {"error", error.message}});
  return contract::exit_code_of(error.code);
}

/// The exit code of a rank that has met its peers. A rank that gives up because a peer has follows
/// it, and the peer tells why.
int exit_code_among_peers(const AgentLink& link, const Error& error) {
  const bool follows_peer = error.code == ErrorCode::kAborted && !link.stop_requested();
  return follows_peer ? contract::kExitPeerLost : contract::exit_code_of(error.code);
}

/// Tells the log and the agent why this rank gives up. For after its peers have been told it may be
/// too late: their ends may lead to its own while it still cleans up.
void tell_failure(Logger& log, const Identity& id, AgentLink& link, const Error& error) {
  (void)leave_with(log, id, error);
  const bool follows_peer = error.code == ErrorCode::kPeerLost || error.code == ErrorCode::kAborted;
  if (follows_peer || id.world == 1) return;
  (void)link.send(contract::encode(contract::Failing{
      .exit_code = contract::exit_code_of(error.code), .message = error.message}));
}

Result<int> train_rank(Logger& log, const Identity& id, AgentLink& link, const CudaSupport* cuda) {
  TRAINYARD_ASSIGN(Progress progress, Progress::map(id.progress_fd));
  TRAINYARD_ASSIGN(FaultPlan faults, FaultPlan::parse(text_from_environment(contract::kEnvFault),
                                                      id.rank, id.generation));
  faults.set_journal(text_from_environment(contract::kEnvFaultJournal));
  faults.set_stop_requested([&link] { return link.stop_requested(); });
  progress.set_faults(std::move(faults));
  progress.set_phase(contract::Phase::kStarting);
  const SystemClock clock;
  TrainContext context{.checkpoint_root = text_from_environment(contract::kEnvCheckpointDir),
                       .job_uid = text_from_environment(contract::kEnvJobUid, "local"),
                       .memory_fd = id.memory_fd,
                       .cuda = cuda,
                       .local_rank = static_cast<int>(id.local_rank),
                       .local_world_size = static_cast<int>(id.local_world),
                       .progress = &progress,
                       .log = &log,
                       .clock = &clock,
                       .stop_requested = [&link] { return link.stop_requested(); },
                       .warn =
                           [&link](const std::string& message) {
                             // Best effort: the log has it as well.
                             (void)link.send(contract::encode(contract::Warning{message}));
                           }};
  TRAINYARD_ASSIGN(context.peer_timeout, peer_timeout());
  TRAINYARD_ASSIGN(context.spec, read_engine_spec());
  TRAINYARD_ASSIGN(context.checkpoint_policy, read_checkpoint_policy());
  progress.set_phase(contract::Phase::kRendezvous);
  TRAINYARD_ASSIGN(const std::unique_ptr<trace::Recorder> recorder, make_recorder());
  trace::SpanFan spans;
  spans.connect(recorder.get());
  StageMeter meter;
  spans.connect(&meter);
  context.spans = &spans;
  context.traces = recorder != nullptr;
  context.meter = &meter;
  TRAINYARD_ASSIGN(std::unique_ptr<comm::Communicator> world,
                   meet(id, link, context.spec, context.job_uid, context.resume));
  TRAINYARD_ASSIGN(const layout::Mesh mesh,
                   layout::mesh_of(context.spec.parallelism, world->size()));
  Result<comm::Groups> made =
      comm::Groups::make(*world, mesh, context.spec.parallelism.chunks_per_stage);
  if (!made) {
    tell_failure(log, id, link, made.error());
    return exit_code_among_peers(link, made.error());
  }
  std::optional<comm::Groups> groups = *std::move(made);
  bool told = false;
  groups->before_abort([&](const Error& error) {
    if (!std::exchange(told, true)) tell_failure(log, id, link, error);
  });
  groups->observe(context.spans);
  context.groups = &*groups;
  context.end_at_once = [&](const Error& error) {
    report_lost_peers(link, *groups, error);
    std::_Exit(exit_code_among_peers(link, error));
  };
  Result<TrainOutcome> outcome = train(context);
  if (!outcome) report_lost_peers(link, *groups, outcome.error());
  groups.reset();
  world.reset();  // ends the last writer of spans
  leave_trace(recorder.get(), context, id.rank);
  if (!outcome) return exit_code_among_peers(link, outcome.error());
  if (outcome->complete) {
    if (id.rank == 0) {
      const contract::RunResult& result = outcome->result;
      log.info(
          "run complete",
          {{"step", result.step}, {"loss", result.final_loss}, {"state_hash", result.state_hash}});
      TRAINYARD_TRY(link.send(contract::encode(result)));
    }
    return contract::kExitDone;
  }
  log.info("stopped at a step boundary",
           {{"step", outcome->result.step}, {"checkpointed", outcome->checkpointed}});
  if (outcome->checkpointed) return contract::kExitTerminatedAfterCheckpoint;
  return link.stop_requested() ? contract::kExitRetry : contract::kExitPeerLost;
}

void prepare_process() {
  // SIGTERM is received by the link's thread alone, as a request to stop at the next step boundary;
  // SIGINT of a terminal goes to the whole foreground group, and the agent decides what it means.
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGINT);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  // A limit on the size of files is a full disk to us: an error of the write, not a reason to die.
  signal(SIGXFSZ, SIG_IGN);
  // It has connections to every other rank, up to four each.
  raise_open_file_limit();
}

}  // namespace

int run_rank(Logger& log, const CudaSupport* cuda) {
  prepare_process();
  const Result<Identity> id = read_identity();
  if (!id) {
    log.error(id.error().message);
    return contract::exit_code_of(id.error().code);
  }
  const Status dumps = enable_stack_dumps();
  if (!dumps) log.warning("no stack dumps: " + dumps.error().message);
  const auto link = AgentLink::open(id->agent_fd, dump_stacks);
  if (!link) {
    log.error(link.error().message);
    return contract::exit_code_of(link.error().code);
  }
  const Result<int> code = train_rank(log, *id, **link, cuda);
  return code ? *code : leave_with(log, *id, code.error());
}

}  // namespace trainyard::engine
