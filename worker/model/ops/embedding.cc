#include "worker/model/ops/embedding.h"

namespace trainyard::engine {

void Embedding::forward(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  kernels::Elements y = args.out[0];
  if (slices_) y.data = args.scratch;  // of all rows
  args.kernels->embedding_forward(
      {.rows = batch.rows,
       .width = width_,
       .tokens = batch.tokens.data(),
       .held = held_,
       .wte = args.params[0].value,
       .wpe = args.params.size() > 1 && !is_part_ ? args.params[1].value : kernels::ConstElements(),
       .y = y});
  if (!is_part_) drop(args);
}

std::unique_ptr<Op> Embedding::part(const TensorShare& share) const {
  auto part = std::make_unique<Embedding>(width_, rate_, op_, padded_vocab_);
  const layout::Range rows = share.of(padded_vocab_);
  part->held_ = {.first = rows.begin, .count = rows.size()};
  part->is_part_ = true;
  part->slices_ = share.slices;
  return part;
}

void Embedding::finish(const OpArgs& args, OpPass, const MeetingRows&) const {
  const data::MicroBatch& batch = rows_of(args);
  if (args.params.size() > 1) {
    args.kernels->embedding_forward({.rows = batch.rows,
                                     .width = width_,
                                     .tokens = batch.tokens.data(),
                                     .wpe = args.params[1].value,
                                     .y = args.out[0]});
  }
  drop(args);
}

void Embedding::drop(const OpArgs& args) const {
  const data::MicroBatch& batch = rows_of(args);
  if (!args.numerics->training || rate_ == 0) return;
  args.kernels->dropout_add({.rows = batch.rows,
                             .width = width_,
                             .dropout = {.rate = rate_, .seed = args.numerics->seed, .op = op_},
                             .x = args.out[0],
                             .y = args.out[0]});
}

void Embedding::backward_weight(const OpArgs& args) const {
  const data::MicroBatch& batch = *args.batch;
  kernels::ConstElements dy = args.d_out[0];
  if (rate_ > 0) {
    const kernels::Elements masked(args.scratch, dy.type);
    args.kernels->dropout_backward(
        {.rows = batch.rows,
         .width = width_,
         .dropout = {.rate = rate_, .seed = args.numerics->seed, .op = op_},
         .dy = dy,
         .dx = masked});
    dy = masked;
  }
  kernels::EmbeddingBackward gradient{.rows = batch.rows,
                                      .width = width_,
                                      .tokens = batch.tokens.data(),
                                      .held = held_,
                                      .dy = dy,
                                      .quantum_log2 = args.numerics->gradient_quantum_log2,
                                      .partials = args.numerics->targets_of_step,
                                      .d_wte = args.params[0].gradient.sums,
                                      .overflow = args.numerics->overflow};
  const kernels::GradientSum d_wpe =
      args.params.size() > 1 ? args.params[1].gradient.sums : kernels::GradientSum();
  if (!slices_) gradient.d_wpe = d_wpe;
  args.kernels->embedding_backward(gradient);
  if (!slices_ || !d_wpe.is_set()) return;
  // Every rank has all positions' rows: it adds those of its slices, masked where they lie among
  // all rows.
  const int64_t row = width_ * size_of(dy.type);
  int64_t own = 0;
  for (const kernels::Sequence& sequence : args.slices->rows.sequences) {
    const kernels::Sequence& whole = batch.rows.sequences[static_cast<size_t>(own++)];
    const int64_t first = whole.begin + sequence.position - whole.position;
    kernels::Sequence alone = sequence;
    alone.begin = 0;
    gradient.rows = {.count = sequence.length, .sequences = {&alone, 1}};
    gradient.tokens = batch.tokens.data() + first;
    gradient.held = {.count = 0};
    gradient.dy = {static_cast<const std::byte*>(dy.data) + first * row, dy.type};
    gradient.d_wte = {};
    gradient.d_wpe = d_wpe;
    args.kernels->embedding_backward(gradient);
  }
}

}  // namespace trainyard::engine
