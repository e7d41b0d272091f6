#include "worker/job/engine_state.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <pthread.h>

#include "common/api/encode.h"
#include "worker/checkpoint/state_hash.h"
#include "worker/job/same_run.h"

namespace trainyard::engine {
namespace {

using checkpoint::TensorKind;
/// Loss of the checkpoint's step, nats a token; absent where it is not finite.
constexpr char kLossScalar[] = "loss";
constexpr TensorKind kKinds[] = {TensorKind::kParameter, TensorKind::kFirstMoment,
                                 TensorKind::kSecondMoment};

/// What this rank owns of one.
std::span<float> owned(Engine& engine, int param, TensorKind kind) {
  States& states = engine.states();
  if (kind == TensorKind::kParameter) return states.master(param);
  return kind == TensorKind::kFirstMoment ? states.m(param) : states.v(param);
}

/// Fills from a checkpoint, until somebody asks to stop.
Engine::FillSlice reads(checkpoint::CheckpointReader& reader, const Model& model, TensorKind kind,
                        const StopAsked& stop_asked) {
  return [&, kind](int param, const layout::Rectangle& slice, std::span<float> values) -> Status {
    if (stop_asked && stop_asked()) return {};
    return reader.read(model.params[static_cast<size_t>(param)].name(), kind, slice, values);
  };
}

}  // namespace

EngineState::EngineState(Engine& engine, std::string data_identity, hf::RunFacts facts)
    : engine_(engine), data_identity_(std::move(data_identity)), facts_(std::move(facts)) {
  for (const int param : engine.name_order()) {
    for (const TensorKind kind : kKinds) {
      int64_t first = engine.states().layout().stored(param, engine.groups().at).begin -
                      engine.states().owned(param).begin;
      for (const layout::Rectangle& slice :
           engine.states().layout().stored_slices(param, engine.groups().at)) {
        parts_.push_back({param, kind, slice, first});
        first += slice.elements();
      }
    }
  }
}

Result<checkpoint::Snapshot> EngineState::snapshot() {
  const api::EngineSpec& spec = engine_.spec();
  checkpoint::Snapshot snapshot{
      .step = step(),
      .samples_consumed = step() * spec.batch.global_sequences,
      .config_json = hf::with_run_facts(api::encode_engine(spec), facts_)};
  snapshot.scalars[checkpoint::kOptimizerStepScalar] = engine_.optimizer().updates();
  snapshot.scalars[checkpoint::kSeedScalar] = static_cast<uint64_t>(spec.seed);
  if (!data_identity_.empty()) snapshot.scalars[kDataIdentityScalar] = data_identity_;
  if (std::isfinite(loss_)) snapshot.scalars[kLossScalar] = loss_;
  TRAINYARD_TRY(prepare_buffer());
  TRAINYARD_TRY(engine_.at_snapshot([&]() -> Status { return copy_parts(snapshot.slices); }));
  snapshot.owner = buffer_;
  return snapshot;
}

void EngineState::claim_buffer() {
  if (buffer_ != nullptr || !allocate_buffer()) return;  // the first snapshot says what is wrong
  claiming_ = std::jthread([pages = buffer_->bytes()](const std::stop_token& stop) {
    ::pthread_setname_np(::pthread_self(), "ckpt-memory");
    populate(pages, stop);
  });
}

Status EngineState::prepare_buffer() {
  if (buffer_ != nullptr) {
    if (buffer_.use_count() == 1) return {};
    return Error{ErrorCode::kUnavailable,
                 "snapshot: the one before is still held, the disk hangs over it"};
  }
  return allocate_buffer();
}

Status EngineState::allocate_buffer() {
  int64_t bytes = 0;
  for (const Part& part : parts_)
    bytes += part.where.elements() * static_cast<int64_t>(sizeof(float));
  TRAINYARD_ASSIGN(buffer_, engine_.device().host_memory().allocate(bytes));
  return {};
}

Status EngineState::copy_parts(std::vector<checkpoint::TensorSlice>& slices) {
  std::span<std::byte> free = buffer_->bytes();
  std::vector<CopyRange> ranges;
  for (const Part& part : parts_) {
    const ParamSpec& param = engine_.model().params[static_cast<size_t>(part.param)];
    const auto count = static_cast<size_t>(part.where.elements());
    const std::span<const float> source =
        owned(engine_, part.param, part.kind).subspan(static_cast<size_t>(part.first), count);
    const std::span<std::byte> copy = free.first(source.size_bytes());
    free = free.subspan(copy.size());
    ranges.push_back({copy.data(), std::as_bytes(source).data(), copy.size()});
    slices.push_back({.name = param.name(),
                      .kind = part.kind,
                      .dtype = DType::kFloat32,
                      .global_shape = param.tensor.shape,
                      .where = part.where,
                      .data = copy});
  }
  engine_.device().copy(ranges);
  return engine_.device().wait();
}

Status EngineState::restore(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked) {
  TRAINYARD_TRY(check_same_run(reader, engine_.spec(), data_identity_));
  TRAINYARD_TRY(check_facts(reader));
  return load(reader, stop_asked);
}

Status EngineState::start_from(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked) {
  TRAINYARD_TRY(check_start(reader, engine_.spec(), data_identity_));
  TRAINYARD_TRY(check_facts(reader));
  if (engine_.spec().start_from->what == api::StartWhat::kWeights)
    return load_parameters(reader, stop_asked);
  return load(reader, stop_asked);
}

Status EngineState::check_facts(const checkpoint::CheckpointReader& reader) const {
  const checkpoint::Manifest& manifest = reader.manifest();
  const hf::RunFacts stored = hf::run_facts_of(manifest.config_json);
  // A checkpoint from before they were kept has none.
  const std::string difference = stored.imported == hf::ImportedFacts()
                                     ? ""
                                     : hf::difference_of(facts_.imported, stored.imported);
  if (!difference.empty()) {
    return Error{ErrorCode::kInvalidConfig, "engine.model.import: " + difference +
                                                " as in the checkpoint " +
                                                reader.directory().filename().string() +
                                                ", from which the run goes on; put the imported "
                                                "folder back"};
  }
  return {};
}

Status EngineState::load_parameters(checkpoint::CheckpointReader& reader,
                                    const StopAsked& stop_asked) {
  return engine_.set_parameters(reads(reader, engine_.model(), TensorKind::kParameter, stop_asked));
}

Status EngineState::load(checkpoint::CheckpointReader& reader, const StopAsked& stop_asked) {
  const checkpoint::Manifest& manifest = reader.manifest();
  TRAINYARD_TRY(load_parameters(reader, stop_asked));
  for (const int param : engine_.name_order()) {
    if (engine_.states().purpose() == Purpose::kInfer) break;
    for (const TensorKind kind : {TensorKind::kFirstMoment, TensorKind::kSecondMoment}) {
      TRAINYARD_TRY(engine_.fill(param, owned(engine_, param, kind),
                                 reads(reader, engine_.model(), kind, stop_asked)));
    }
  }
  TRAINYARD_ASSIGN(const int64_t updates,
                   checkpoint::scalar_int64(manifest.scalars, checkpoint::kOptimizerStepScalar));
  loss_ = std::numeric_limits<double>::quiet_NaN();
  if (manifest.scalars.contains(kLossScalar)) {
    TRAINYARD_ASSIGN(loss_, checkpoint::scalar_double(manifest.scalars, kLossScalar));
  }
  engine_.optimizer().set_updates(updates);
  engine_.set_steps_done(manifest.step);
  skipped_in_a_row_ = 0;
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
