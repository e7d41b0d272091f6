#pragma once

#include "worker/model/ops/attention.h"

namespace trainyard::engine {

/// Attention of a tensor rank that shares its one key head with others: query heads of theirs add
/// to the gradients of its keys and values, so that their exact sums meet before they are rounded.
/// Its bits are those of Attention; in, out, saved as there.
class SharedKeyAttention final : public Op {
 public:
  /// `shape`: this rank's heads, one key head among them, which is the `key_head`-th of
  /// `key_heads`, each shared by `sharers` ranks.
  SharedKeyAttention(const AttentionShape& shape, int64_t key_head, int64_t key_heads,
                     int64_t sharers)
      : shape_(shape),
        attention_(shape),
        key_head_(key_head),
        key_heads_(key_heads),
        sharers_(sharers) {}
  BackwardUses backward_uses() const override { return attention_.backward_uses(); }
  size_t saved_count() const override { return attention_.saved_count(); }
  std::vector<int64_t> saved_bytes(const OpExtent& extent) const override {
    return attention_.saved_bytes(extent);
  }
  int64_t scratch_bytes(const OpExtent&, OpPass) const override;
  OpFlops flops(const OpExtent& extent) const override { return attention_.flops(extent); }
  void forward(const OpArgs& args) const override { attention_.forward(args); }
  void backward_input(const OpArgs&) const override;
  /// Context ranks cannot share it further.
  std::optional<HeadColumns> head_columns() const override { return attention_.head_columns(); }
  TensorMeeting meeting(OpPass) const override;
  void finish(const OpArgs&, OpPass, const MeetingRows&) const override;

 private:
  /// What a pass has in scratch after the sums of all key heads: this one's keys and values, and
  /// what the kernel carries from block to block. In bytes.
  struct Places {
    int64_t keys = 0;
    int64_t carry = 0;
    int64_t end = 0;
  };
  Places places(int64_t rows, DType compute) const;
  /// Keys and values of a head.
  int64_t key_columns() const { return 2 * shape_.head_dim; }
  int64_t query_columns() const { return shape_.heads * shape_.head_dim; }
  int64_t* own_sums(const OpArgs& args) const;

  AttentionShape shape_;
  Attention attention_;
  int64_t key_head_;
  int64_t key_heads_;
  int64_t sharers_;
};

}  // namespace trainyard::engine
