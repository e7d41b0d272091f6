#include "worker/job/engine_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <pthread.h>

#include "common/api/encode.h"
#include "common/api/numerics.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/job/same_run.h"

namespace trainyard::engine {
namespace {

using checkpoint::TensorKind;
/// Loss of the checkpoint's step, nats a token; absent where it is not finite.
constexpr char kLossScalar[] = "loss";
constexpr TensorKind kKinds[] = {TensorKind::kParameter, TensorKind::kFirstMoment,
                                 TensorKind::kSecondMoment};

constexpr auto kElementBytes = static_cast<int64_t>(sizeof(float));

Error still_held() {
  return {ErrorCode::kUnavailable, "snapshot: the previous one is still in use, as the disk hangs"};
}

/// What this rank owns of one.
std::span<float> owned(Engine& engine, int param, TensorKind kind) {
  States& states = engine.states();
  if (kind == TensorKind::kParameter) return states.master(param);
  return kind == TensorKind::kFirstMoment ? states.m(param) : states.v(param);
}

/// Fills from a checkpoint, until somebody asks to stop.
Engine::FillSlice reads(checkpoint::StateStore& stored, const Model& model, TensorKind kind,
                        const StopAsked& stop_asked) {
  return [&, kind](int param, const layout::Rectangle& slice, std::span<float> values) -> Status {
    if (stop_asked && stop_asked()) return {};
    return stored.read(model.params[static_cast<size_t>(param)].name(), kind, slice, values);
  };
}

}  // namespace

EngineState::EngineState(Engine& engine, std::string data_identity, hf::RunFacts facts)
    : engine_(engine),
      data_identity_(std::move(data_identity)),
      facts_(std::move(facts)),
      early_stop_(engine.spec().evaluation),
      parts_(parts(Extent::kStored)) {}

/// One after the other in a buffer.
std::vector<EngineState::Part> EngineState::parts(Extent extent) const {
  const layout::Layout& layout = engine_.states().layout();
  const layout::Coordinate& at = engine_.groups().at;
  std::vector<Part> parts;
  int64_t offset = 0;
  for (const int param : engine_.name_order()) {
    const bool owned = extent == Extent::kOwned;
    const std::vector<layout::Rectangle> slices =
        owned ? layout.owned_slices(param, at) : layout.stored_slices(param, at);
    const int64_t begin =
        owned ? 0 : layout.stored(param, at).begin - engine_.states().owned(param).begin;
    for (const TensorKind kind : kKinds) {
      int64_t first = begin;
      for (const layout::Rectangle& slice : slices) {
        parts.push_back({param, kind, slice, first, offset});
        first += slice.elements();
        offset += slice.elements() * kElementBytes;
      }
    }
  }
  return parts;
}

std::vector<checkpoint::StatePart> EngineState::described(const std::vector<Part>& parts) const {
  std::vector<checkpoint::StatePart> described;
  for (const Part& part : parts) {
    const ParamSpec& param = engine_.model().params[static_cast<size_t>(part.param)];
    described.push_back({param.name(), part.kind, param.tensor.shape, part.where});
  }
  return described;
}

std::string EngineState::owner_in_memory(const std::string& job_uid) const {
  const comm::Communicator& world = *engine_.groups().world;
  return "rank " + std::to_string(world.rank()) + " of " + std::to_string(world.size()) +
         " of job " + job_uid;
}

checkpoint::SlotShape EngineState::memory_shape(const std::string& job_uid) const {
  return checkpoint::shape_of(described(parts(Extent::kOwned)), owner_in_memory(job_uid));
}

Status EngineState::keep_in_memory(int fd, const std::string& job_uid,
                                   const std::optional<checkpoint::SlotShape>& ward) {
  std::vector<Part> owned_parts = parts(Extent::kOwned);
  TRAINYARD_ASSIGN(memory_, checkpoint::MemorySlots::map(fd, described(owned_parts),
                                                         owner_in_memory(job_uid), ward));
  owned_parts_ = std::move(owned_parts);
  // Where what is owned of a parameter begins in a slot: its stored slices are stretches of that.
  std::map<std::pair<int, TensorKind>, int64_t> begin;
  for (const Part& part : owned_parts_)
    begin.try_emplace({part.param, part.kind}, part.offset);
  for (Part& part : parts_)
    part.offset = begin.at({part.param, part.kind}) + part.first * kElementBytes;
  return {};
}

std::vector<checkpoint::MemoryOffer> EngineState::offers() const {
  return memory_ ? memory_->offers() : std::vector<checkpoint::MemoryOffer>();
}

Status EngineState::recall(const checkpoint::CheckpointId& id) {
  TRAINYARD_ASSIGN(const std::unique_ptr<checkpoint::StateStore> stored, memory_->open(id));
  TRAINYARD_TRY(restore(*stored));
  remembered_step_ = id.step;
  return {};
}

/// All but the tensors.
checkpoint::Manifest EngineState::description() const {
  const api::EngineSpec& spec = engine_.spec();
  checkpoint::Manifest manifest{
      .version = api::is_of_version_1(spec) ? 1 : checkpoint::kFormatVersion,
      .job_uid = record_.job_uid,
      .generation = record_.generation,
      .parent_generation = record_.parent_generation,
      .fork_step = record_.fork_step,
      .branch_id = record_.branch_id,
      .step = step(),
      .samples_consumed = step() * spec.batch.global_sequences,
      .config_json = hf::with_run_facts(api::encode_engine(spec), facts_)};
  manifest.scalars[checkpoint::kOptimizerStepScalar] = engine_.optimizer().updates();
  manifest.scalars[checkpoint::kSeedScalar] = static_cast<uint64_t>(spec.seed);
  if (!data_identity_.empty()) manifest.scalars[kDataIdentityScalar] = data_identity_;
  if (std::isfinite(loss_)) manifest.scalars[kLossScalar] = loss_;
  early_stop_.store(manifest.scalars);
  return manifest;
}

Status EngineState::remember() {
  if (remembered_step_ == step()) return {};
  TRAINYARD_ASSIGN(const std::span<std::byte> slot, memory_->begin());
  TRAINYARD_TRY(engine_.at_snapshot([&] { return copy_parts(owned_parts_, slot); }));
  TRAINYARD_TRY(memory_->complete(description()));
  remembered_step_ = step();
  return {};
}

Result<checkpoint::Snapshot> EngineState::snapshot() {
  checkpoint::Manifest head = description();
  checkpoint::Snapshot snapshot{.version = head.version,
                                .step = head.step,
                                .samples_consumed = head.samples_consumed,
                                .config_json = std::move(head.config_json),
                                .scalars = std::move(head.scalars)};
  std::span<const std::byte> copied;
  if (memory_) {
    if (memory_->held()) return still_held();
    TRAINYARD_TRY(remember());
    copied = memory_->newest();
    snapshot.owner = memory_->hold();
  } else {
    TRAINYARD_TRY(prepare_buffer());
    TRAINYARD_TRY(engine_.at_snapshot([&] { return copy_parts(parts_, buffer_->bytes()); }));
    copied = buffer_->bytes();
    snapshot.owner = buffer_;
  }
  for (const Part& part : parts_) {
    const ParamSpec& param = engine_.model().params[static_cast<size_t>(part.param)];
    snapshot.slices.push_back(
        {.name = param.name(),
         .kind = part.kind,
         .dtype = DType::kFloat32,
         .global_shape = param.tensor.shape,
         .where = part.where,
         .data = copied.subspan(static_cast<size_t>(part.offset),
                                static_cast<size_t>(part.where.elements() * kElementBytes))});
  }
  return snapshot;
}

void EngineState::claim_buffer() {
  if (claiming_.joinable()) return;
  // The first snapshot says what is wrong.
  if (!memory_ && (buffer_ != nullptr || !allocate_buffer())) return;
  std::vector<std::span<std::byte>> claimed;
  if (buffer_) claimed.push_back(buffer_->bytes());
  for (int slot = 0; memory_ && slot < checkpoint::MemorySlots::kSlots; ++slot)
    claimed.push_back(memory_->data(slot));
  const bool has_ward = memory_ && memory_->has_ward();
  for (int slot = 0; has_ward && slot < checkpoint::MemorySlots::kWardSlots; ++slot)
    claimed.push_back(memory_->ward_data(slot));
  claiming_ = std::jthread([claimed](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "ckpt-memory");
    for (const std::span<std::byte> pages : claimed)
      populate(pages, stop);
  });
}

Status EngineState::prepare_buffer() {
  if (buffer_ != nullptr) {
    if (buffer_.use_count() == 1) return {};
    return still_held();
  }
  return allocate_buffer();
}

Status EngineState::allocate_buffer() {
  int64_t bytes = 0;
  for (const Part& part : parts_)
    bytes += part.where.elements() * kElementBytes;
  TRAINYARD_ASSIGN(buffer_, engine_.device().host_memory().allocate(bytes));
  return {};
}

Status EngineState::copy_parts(const std::vector<Part>& parts, std::span<std::byte> buffer) {
  std::vector<CopyRange> ranges;
  for (const Part& part : parts) {
    const std::span<const float> source =
        owned(engine_, part.param, part.kind)
            .subspan(static_cast<size_t>(part.first), static_cast<size_t>(part.where.elements()));
    std::byte* const copy = buffer.data() + part.offset;
    ranges.push_back({copy, std::as_bytes(source).data(), source.size_bytes()});
  }
  engine_.device().copy(ranges);
  return engine_.device().wait();
}

Status EngineState::restore(checkpoint::StateStore& stored, const StopAsked& stop_asked) {
  TRAINYARD_TRY(check_same_run(stored, engine_.spec(), data_identity_));
  TRAINYARD_TRY(check_facts(stored));
  return load(stored, stop_asked);
}

Status EngineState::start_from(checkpoint::StateStore& stored, const StopAsked& stop_asked) {
  TRAINYARD_TRY(check_start(stored, engine_.spec(), data_identity_, facts_));
  TRAINYARD_TRY(check_facts(stored));
  if (engine_.spec().start_from->what == api::StartWhat::kWeights)
    return load_parameters(stored, stop_asked);
  TRAINYARD_TRY(load(stored, stop_asked));
  early_stop_.begin_at(stored.manifest().step);
  return {};
}

Status EngineState::check_facts(const checkpoint::StateStore& stored) const {
  const checkpoint::Manifest& manifest = stored.manifest();
  const hf::RunFacts facts = hf::run_facts_of(manifest.config_json);
  // A checkpoint from before they were kept has none.
  const std::string difference = facts.imported == hf::ImportedFacts()
                                     ? ""
                                     : hf::difference_of(facts_.imported, facts.imported);
  if (!difference.empty()) {
    return Error{ErrorCode::kInvalidConfig,
                 "engine.model.import: " + difference + " as in the checkpoint " + stored.name() +
                     ", from which the run resumes; put the imported folder back"};
  }
  return {};
}

Status EngineState::load_parameters(checkpoint::StateStore& stored, const StopAsked& stop_asked) {
  return engine_.set_parameters(reads(stored, engine_.model(), TensorKind::kParameter, stop_asked));
}

Status EngineState::load(checkpoint::StateStore& stored, const StopAsked& stop_asked) {
  const checkpoint::Manifest& manifest = stored.manifest();
  remembered_step_ = -1;
  TRAINYARD_TRY(load_parameters(stored, stop_asked));
  for (const int param : engine_.name_order()) {
    if (engine_.states().purpose() == Purpose::kInfer) break;
    for (const TensorKind kind : {TensorKind::kFirstMoment, TensorKind::kSecondMoment}) {
      TRAINYARD_TRY(engine_.fill(param, owned(engine_, param, kind),
                                 reads(stored, engine_.model(), kind, stop_asked)));
    }
  }
  TRAINYARD_ASSIGN(const int64_t updates,
                   checkpoint::scalar_int64(manifest.scalars, checkpoint::kOptimizerStepScalar));
  loss_ = std::numeric_limits<double>::quiet_NaN();
  if (manifest.scalars.contains(kLossScalar)) {
    TRAINYARD_ASSIGN(loss_, checkpoint::scalar_double(manifest.scalars, kLossScalar));
  }
  TRAINYARD_TRY(early_stop_.restore(manifest.scalars));
  engine_.optimizer().set_updates(updates);
  engine_.set_steps_done(manifest.step);
  unchanged_ = 0;
  return {};
}

Status EngineState::start_over() {
  const auto zeros = [](int, const layout::Rectangle&, std::span<float> values) -> Status {
    std::fill(values.begin(), values.end(), 0.0F);
    return {};
  };
  for (const int param : engine_.name_order()) {
    for (const TensorKind kind : {TensorKind::kFirstMoment, TensorKind::kSecondMoment})
      TRAINYARD_TRY(engine_.fill(param, owned(engine_, param, kind), zeros));
  }
  remembered_step_ = -1;
  loss_ = std::numeric_limits<double>::quiet_NaN();
  early_stop_.begin_at(-1);
  engine_.optimizer().set_updates(0);
  engine_.set_steps_done(0);
  unchanged_ = 0;
  return {};
}

Result<Hash128> EngineState::hash() {
  TRAINYARD_TRY(engine_.settle());
  comm::Communicator& world = *engine_.groups().world;
  checkpoint::StateHash state;
  for (const int param : engine_.name_order()) {
    const std::string& name = engine_.model().params[static_cast<size_t>(param)].name();
    for (const TensorKind kind : kKinds) {
      TRAINYARD_TRY(gather_pieces(
          param, kind, [&](std::span<const float> piece) { state.add(name, kind, piece); }));
    }
  }
  Hash128 hash =
      state.finish(engine_.optimizer().updates(), static_cast<uint64_t>(engine_.spec().seed),
                   engine_.samples_consumed());
  const auto message = std::as_writable_bytes(std::span(&hash, 1));
  TRAINYARD_TRY(world.rank() == 0 ? tell_all(world, message) : hear(world, message));
  return hash;
}

Status EngineState::gather_pieces(int param, TensorKind kind, const UsePiece& use) {
  return engine::gather_pieces(*engine_.groups().world, engine_.states().layout(), param,
                               engine_.device(), owned(engine_, param, kind), piece_, use);
}

}  // namespace trainyard::engine
