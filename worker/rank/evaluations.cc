#include "worker/rank/evaluations.h"

#include "worker/engine/limits.h"

namespace trainyard::engine {
namespace {

Result<data::EvaluationLoader> open_windows(const data::TokenSet& tokens, const Inputs& inputs,
                                            const Engine& engine, int64_t micro_sequences,
                                            int64_t windows_max) {
  return data::EvaluationLoader::open(tokens,
                                      {.tokens_per_sample = engine.spec().data.sequence_length,
                                       .micro_sequences = micro_sequences,
                                       .windows_max = windows_max,
                                       .data_ranks = engine.groups().data_ranks(),
                                       .data_rank = engine.groups().data_rank(),
                                       .end_of_text = inputs.end_of_text});
}

}  // namespace

Result<std::unique_ptr<Evaluations>> Evaluations::open(const TrainContext& context,
                                                       const Inputs& inputs, Engine& engine,
                                                       EngineState& state) {
  const int64_t at_once =
      evaluated_at_once(partition_of(engine.spec(), engine.groups().data_ranks()));
  TRAINYARD_ASSIGN(auto loader, open_windows(*inputs.validation, inputs, engine, at_once,
                                             engine.spec().evaluation.sequences));
  return std::unique_ptr<Evaluations>(
      new Evaluations(context, engine, state, std::move(loader), at_once));
}

bool Evaluations::is_due() const {
  const int64_t every = engine_.spec().evaluation.every_steps;
  return every > 0 && engine_.steps_done() % every == 0;
}

bool Evaluations::is_missed() const {
  const EarlyStop& stop = state_.early_stop();
  return stop.is_on() && engine_.steps_done() > 0 && is_due() &&
         stop.judged_step() < engine_.steps_done();
}

Result<bool> Evaluations::evaluate(bool judges, const StopAsked& stop_asked) {
  context_.progress->set_phase(contract::Phase::kEvaluating);
  loader_.rewind();
  TRAINYARD_ASSIGN(const EvaluationReport report,
                   engine_.evaluate(loader_, loader_.windows(), micro_sequences_, stop_asked));
  context_.progress->set_phase(contract::Phase::kTraining);
  if (report.stop_requested) return true;
  loss_ = report.loss;
  step_ = engine_.steps_done();
  context_.progress->validation_loss(loss_);
  if (context_.groups->world->rank() == 0)
    context_.log->info("evaluated", {{"step", step_}, {"loss", loss_}});
  if (judges) judge();
  return false;
}

void Evaluations::judge() {
  EarlyStop& stop = state_.early_stop();
  is_best_ = stop.judge(step_, loss_);
  if (!stop.is_over() || context_.groups->world->rank() != 0) return;
  context_.log->info("stopping early: the validation loss no longer falls",
                     {{"step", step_},
                      {"patience", engine_.spec().evaluation.early_stop_patience},
                      {"best_step", stop.best_step()},
                      {"best_loss", stop.best_loss()}});
}

Result<double> loss_of_windows(const Inputs& inputs, Engine& engine) {
  TRAINYARD_ASSIGN(auto windows,
                   open_windows(inputs.tokens, inputs, engine, 1, engine.groups().data_ranks()));
  const StopAsked never;
  TRAINYARD_ASSIGN(const EvaluationReport report,
                   engine.evaluate(windows, windows.windows(), 1, never));
  return report.loss;
}

}  // namespace trainyard::engine
