#include "worker/model/ops/key_gather.h"

#include <algorithm>

#include "common/base/check.h"

namespace trainyard::engine {
namespace {

/// Copies columns of each row, between rows of as many elements as `from` and `to` say.
struct Stride {
  std::byte* data;
  int64_t columns;
};
void copy_columns(Stride from, Stride to, int64_t rows, int64_t columns, int64_t element) {
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(from.data + row * from.columns * element, columns * element,
                to.data + row * to.columns * element);
  }
}

std::byte* at(const TensorView& view, int64_t column) {
  return static_cast<std::byte*>(view.data) + column * size_of(view.type);
}

}  // namespace

int64_t KeyGather::scratch_bytes(const OpExtent& extent, OpPass pass) const {
  if (pass != OpPass::kForward) return 0;
  return share_.size * extent.rows * 2 * own() * size_of(extent.formats.compute);
}

TensorMeeting KeyGather::meeting(OpPass pass) const {
  if (pass != OpPass::kForward) return {};
  return {.kind = TensorMeeting::Kind::kKeys, .columns = 2 * own()};
}

void KeyGather::forward(const OpArgs& args) const {
  const TensorView& x = args.in[0];
  const TensorView& y = args.out[0];
  TRAINYARD_CHECK(x.columns == query_ + 2 * own() && y.columns == query_ + 2 * all_.head_dim);
  const int64_t element = size_of(x.type);
  copy_columns({at(x, 0), x.columns}, {at(y, 0), y.columns}, x.rows, query_, element);
  std::byte* const packed = args.scratch + share_.rank * x.rows * 2 * own() * element;
  copy_columns({at(x, query_), x.columns}, {packed, 2 * own()}, x.rows, 2 * own(), element);
}

void KeyGather::finish(const OpArgs& args, OpPass, const MeetingRows&) const {
  const TensorView& y = args.out[0];
  const int64_t element = size_of(y.type);
  const int64_t first = share_.rank / sharers_ * sharers_;
  for (int64_t i = 0; i < sharers_; ++i) {
    std::byte* const packed = args.scratch + (first + i) * y.rows * 2 * own() * element;
    for (int64_t part = 0; part < 2; ++part) {
      copy_columns({packed + part * own() * element, 2 * own()},
                   {at(y, query_ + part * all_.head_dim + i * own()), y.columns}, y.rows, own(),
                   element);
    }
  }
}

void KeyGather::backward_input(const OpArgs& args) const {
  const TensorView& dy = args.d_out[0];
  const TensorView& dx = args.d_in[0];
  const int64_t element = size_of(dy.type);
  copy_columns({at(dy, 0), dy.columns}, {at(dx, 0), dx.columns}, dy.rows, query_, element);
  const int64_t mine = share_.rank % sharers_ * own();
  for (int64_t part = 0; part < 2; ++part) {
    copy_columns({at(dy, query_ + part * all_.head_dim + mine), dy.columns},
                 {at(dx, query_ + part * own()), dx.columns}, dy.rows, own(), element);
  }
}

}  // namespace trainyard::engine
