#include "worker/engine/rank_meetings.h"

#include <algorithm>
#include <span>

#include "common/base/check.h"

namespace trainyard::engine {

using Kind = TensorMeeting::Kind;

namespace {

layout::Range share_of(const comm::StepCommunicator& group, int64_t length) {
  return TensorShare{.size = group.size(), .rank = group.rank()}.of(length);
}

/// Of a row, as 32-bit integers; 0: it is no whole number of them.
int64_t integers_of(const TensorView& view) {
  const int64_t bytes = view.columns * size_of(view.type);
  return bytes % size_of(DType::kInt32) == 0 ? bytes / size_of(DType::kInt32) : 0;
}

std::span<std::byte> bytes_at(void* data, int64_t row, int64_t rows, int64_t row_bytes) {
  return {static_cast<std::byte*>(data) + row * row_bytes, static_cast<size_t>(rows * row_bytes)};
}

}  // namespace

RankMeetings::RankMeetings(comm::StepCommunicator* tensor, comm::StepCommunicator* context,
                           const Wait& wait)
    : tensor_(tensor),
      context_(context),
      wait_(wait),
      counts_(tensor == nullptr ? 0 : static_cast<size_t>(tensor->size())),
      works_(wait),
      blocks_{PendingWorks(wait), PendingWorks(wait)} {}

Status RankMeetings::meet(const Op& op, OpPass pass, const OpArgs& args) {
  const TensorMeeting meeting = op.meeting(pass);
  if (meeting.kind == Kind::kNone) return {};
  if (meeting.kind == Kind::kToHeads || meeting.kind == Kind::kToPositions)
    return exchange_heads(op, pass, args);
  if (meeting.kind == Kind::kBlocks) return hand_around(op, pass, args);
  TRAINYARD_CHECK(tensor_ != nullptr);
  const int64_t rows = args.batch->rows.count;
  if (meeting.kind == Kind::kSums) {
    return args.slices == nullptr ? add_up(op, pass, args) : scatter_sums(op, pass, args);
  }
  if (meeting.kind == Kind::kBits && args.slices != nullptr) return scatter_bits(op, pass, args);
  comm::WorkPtr work;
  if (meeting.kind == Kind::kBits) {
    // Zero bits change no other's: as integers they add up to what one rank has.
    const TensorView& y = args.out[0];
    TRAINYARD_CHECK(integers_of(y) > 0);
    work = tensor_->all_reduce({static_cast<std::byte*>(y.data), static_cast<size_t>(y.bytes())},
                               DType::kInt32, comm::ReduceOp::kSum);
  } else if (meeting.kind == Kind::kGradients && args.numerics->sums == DType::kFloat32) {
    // One rank adds up an element, so that all of them have the same sum.
    count(meeting.columns, 1);
    const std::span<std::byte> sums(
        args.scratch, static_cast<size_t>(meeting.columns * size_of(DType::kFloat32)));
    work = tensor_->reduce_scatter(sums, counts_, DType::kFloat32, comm::ReduceOp::kSum);
    TRAINYARD_TRY(wait_(work));
    work = tensor_->all_gather(sums, counts_, DType::kFloat32);
  } else if (meeting.kind == Kind::kGradients || meeting.kind == Kind::kKeySums) {
    const int64_t each = meeting.kind == Kind::kKeySums ? rows : 1;
    const int64_t bytes = each * meeting.columns * size_of(DType::kInt64);
    work = tensor_->all_reduce({args.scratch, static_cast<size_t>(bytes)}, DType::kInt64,
                               comm::ReduceOp::kSum);
  } else {
    std::fill(counts_.begin(), counts_.end(), rows * meeting.columns);
    const DType type = meeting.kind == Kind::kKeys ? args.out[0].type : DType::kFloat32;
    const int64_t bytes = tensor_->size() * counts_[0] * size_of(type);
    work = tensor_->all_gather({args.scratch, static_cast<size_t>(bytes)}, counts_, type);
  }
  TRAINYARD_TRY(wait_(work));
  op.finish(args, pass, {.rows = {0, rows}});
  return {};
}

/// Of rows that the ranks share out evenly, what each of them has.
void RankMeetings::count(int64_t rows, int64_t columns) {
  for (int rank = 0; rank < tensor_->size(); ++rank) {
    counts_[static_cast<size_t>(rank)] =
        TensorShare{.size = tensor_->size(), .rank = rank}.of(rows).size() * columns;
  }
}

/// Sequence by sequence: of each the slices lie one after the other, of all together they do not.
Status RankMeetings::gather(const OpArgs& args, const TensorView& all) {
  TRAINYARD_CHECK(tensor_ != nullptr);
  const int64_t row_bytes = all.columns * size_of(all.type);
  int64_t first = 0;
  for (const kernels::Sequence& sequence : args.batch->rows.sequences) {
    const layout::Range here = share_of(*tensor_, sequence.length);
    const auto slice = bytes_at(args.own.data, first, here.size(), row_bytes);
    args.kernels->copy(
        slice.data(),
        bytes_at(all.data, sequence.begin + here.begin, here.size(), row_bytes).data(),
        std::ssize(slice));
    first += here.size();
    count(sequence.length, all.columns);
    TRAINYARD_TRY(works_.add(tensor_->all_gather(
        bytes_at(all.data, sequence.begin, sequence.length, row_bytes), counts_, all.type)));
  }
  return works_.wait_for_all();
}

/// Each rank gets what all ranks' scratch adds up to in the rows of its slices.
Status RankMeetings::scatter(const OpArgs& args, int64_t columns, DType type) {
  const int64_t row_bytes = columns * size_of(type);
  for (const kernels::Sequence& sequence : args.batch->rows.sequences) {
    count(sequence.length, columns);
    TRAINYARD_TRY(works_.add(
        tensor_->reduce_scatter(bytes_at(args.scratch, sequence.begin, sequence.length, row_bytes),
                                counts_, type, comm::ReduceOp::kSum)));
  }
  return works_.wait_for_all();
}

/// Each rank keeps its slices.
Status RankMeetings::scatter_bits(const Op& op, OpPass pass, const OpArgs& args) {
  const TensorView& y = args.out[0];
  TRAINYARD_CHECK(integers_of(y) > 0);
  TRAINYARD_TRY(scatter(args, integers_of(y), DType::kInt32));
  const int64_t row_bytes = y.columns * size_of(y.type);
  int64_t first = 0;
  for (const kernels::Sequence& sequence : args.batch->rows.sequences) {
    const layout::Range here = share_of(*tensor_, sequence.length);
    const auto slice = bytes_at(args.scratch, sequence.begin + here.begin, here.size(), row_bytes);
    args.kernels->copy(slice.data(), bytes_at(y.data, first, here.size(), row_bytes).data(),
                       std::ssize(slice));
    first += here.size();
  }
  op.finish(args, pass, {.rows = {0, first}});
  return {};
}

/// Each rank rounds the sums of its slices.
Status RankMeetings::scatter_sums(const Op& op, OpPass pass, const OpArgs& args) {
  const TensorView& y = pass == OpPass::kForward ? args.out[0] : args.d_in[0];
  TRAINYARD_TRY(scatter(args, y.columns, args.numerics->sums));
  int64_t first = 0;
  for (const kernels::Sequence& sequence : args.batch->rows.sequences) {
    const layout::Range here = share_of(*tensor_, sequence.length);
    op.finish(args, pass,
              {.rows = {sequence.begin + here.begin, sequence.begin + here.end}, .output = first});
    first += here.size();
  }
  return {};
}

/// Sums go to the ranks that round them, row by row; what they make of them goes to all.
Status RankMeetings::add_up(const Op& op, OpPass pass, const OpArgs& args) {
  const TensorView& y = pass == OpPass::kForward ? args.out[0] : args.d_in[0];
  const layout::Range own = share_of(*tensor_, y.rows);
  count(y.rows, y.columns);
  const DType type = args.numerics->sums;
  const int64_t bytes = y.rows * y.columns * size_of(type);
  comm::WorkPtr work = tensor_->reduce_scatter({args.scratch, static_cast<size_t>(bytes)}, counts_,
                                               type, comm::ReduceOp::kSum);
  TRAINYARD_TRY(wait_(work));
  op.finish(args, pass, {.rows = own, .output = own.begin});
  work = tensor_->all_gather({static_cast<std::byte*>(y.data), static_cast<size_t>(y.bytes())},
                             counts_, y.type);
  return wait_(work);
}

/// Of one sequence the rows of each rank follow those of the rank before: what is whole is received
/// where it belongs, and sent from there.
Status RankMeetings::exchange_heads(const Op& op, OpPass pass, const OpArgs& args) {
  TRAINYARD_CHECK(context_ != nullptr);
  const bool to_heads = op.meeting(pass).kind == Kind::kToHeads;
  const bool forward = pass == OpPass::kForward;
  const TensorView& read = forward ? args.in[0] : args.d_out[0];
  const TensorView& written = forward ? args.out[0] : args.d_in[0];
  const TensorView& whole = to_heads ? written : read;
  const int64_t row_bytes = whole.columns * size_of(whole.type);
  for (const kernels::Sequence& sequence : args.whole->rows.sequences) {
    TRAINYARD_CHECK(sequence.length % context_->size() == 0);
    const std::span<std::byte> all =
        bytes_at(whole.data, sequence.begin, sequence.length, row_bytes);
    const std::span<std::byte> own =
        bytes_at(args.scratch, sequence.begin, sequence.length, row_bytes);
    TRAINYARD_TRY(works_.add(to_heads ? context_->all_to_all(own, all, whole.type)
                                      : context_->all_to_all(all, own, whole.type)));
  }
  TRAINYARD_TRY(works_.wait_for_all());
  op.finish(args, pass, {});
  return {};
}

/// Each block goes to the ranks that see it while the one before is computed with. Whatever their
/// part in it, all ranks begin what a block needs of messages in one order, so that none waits for
/// what another one has not begun.
Status RankMeetings::hand_around(const Op& op, OpPass pass, const OpArgs& args) {
  TRAINYARD_CHECK(context_ != nullptr);
  const RingBlocks ring{context_->size()};
  const int64_t rows = args.batch->rows.count / 2;
  const int64_t columns = op.meeting(pass).columns;
  const int64_t element = size_of(args.in[0].type);
  const RingBuffers buffers(rows, columns, element, pass);
  const bool forward = pass == OpPass::kForward;
  auto* const sums = forward ? nullptr : reinterpret_cast<int64_t*>(args.scratch + buffers.sums);
  auto* const received = reinterpret_cast<int64_t*>(args.scratch + buffers.received);
  const auto data_of = [&](int64_t block) {
    return std::span(args.scratch + buffers.data[static_cast<size_t>(block % 2)],
                     static_cast<size_t>(rows * columns * element));
  };
  TRAINYARD_TRY(start_block(op, pass, args, 0, data_of(0)));
  for (int64_t block = 0; block < ring.count(); ++block) {
    if (ring.owner(block) != context_->rank())
      TRAINYARD_TRY(blocks_[static_cast<size_t>(block % 2)].wait_for_all());
    if (block + 1 < ring.count())
      TRAINYARD_TRY(start_block(op, pass, args, block + 1, data_of(block + 1)));
    if (!ring.sees(context_->rank(), block)) continue;
    TRAINYARD_TRY(works_.wait_for_all());  // of sums that leave
    const RingStep step{RingStep::Kind::kTake, block, data_of(block).data(), sums};
    op.step(args, pass, step);
    if (!forward) TRAINYARD_TRY(return_sums(op, pass, args, step, received));
  }
  TRAINYARD_TRY(works_.wait_for_all());
  for (PendingWorks& works : blocks_)
    TRAINYARD_TRY(works.wait_for_all());
  return {};
}

/// Sends a block, or begins to receive it, in memory that the one two before has left.
Status RankMeetings::start_block(const Op& op, OpPass pass, const OpArgs& args, int64_t block,
                                 std::span<std::byte> data) {
  const RingBlocks ring{context_->size()};
  PendingWorks& works = blocks_[static_cast<size_t>(block % 2)];
  TRAINYARD_TRY(works.wait_for_all());
  const int owner = ring.owner(block);
  if (owner != context_->rank()) {
    return ring.sees(context_->rank(), block) ? works.add(context_->receive(data, owner))
                                              : Status();
  }
  op.step(args, pass, {RingStep::Kind::kPack, block, data.data()});
  for (int rank = 0; rank < ring.ranks; ++rank) {
    if (rank != owner && ring.sees(rank, block))
      TRAINYARD_TRY(works.add(context_->send(data, rank)));
  }
  return {};
}

/// The sums of a block go to its owner, which adds up those of all ranks that see it.
Status RankMeetings::return_sums(const Op& op, OpPass pass, const OpArgs& args, const RingStep& own,
                                 int64_t* received) {
  const RingBlocks ring{context_->size()};
  const int owner = ring.owner(own.block);
  const int64_t count = args.batch->rows.count / 2 * op.meeting(pass).columns;
  const auto bytes_of = [count](int64_t* sums) {
    return std::as_writable_bytes(std::span(sums, static_cast<size_t>(count)));
  };
  if (owner != context_->rank()) return works_.add(context_->send(bytes_of(own.sums), owner));
  for (int rank = 0; rank < ring.ranks; ++rank) {
    if (rank == owner || !ring.sees(rank, own.block)) continue;
    comm::WorkPtr work = context_->receive(bytes_of(received), rank);
    TRAINYARD_TRY(wait_(work));
    args.kernels->accumulate(received, own.sums, count, false);
  }
  op.step(args, pass, {RingStep::Kind::kRound, own.block, nullptr, own.sums});
  return {};
}

}  // namespace trainyard::engine
