#pragma once

#include <algorithm>

#include "worker/model/ops/op.h"

namespace trainyard::engine {

/// Of tensor ranks that are more than the key heads: each has made its columns of the keys and
/// values of one head, and gets all of them. in: [rows, queries here | keys / ranks | values /
/// ranks], out: [rows, queries here | keys of a head | values of a head], compute type. d_out,
/// d_in: compute type, overwritten; all ranks that share a head have the same d_out of its keys and
/// values.
class KeyGather final : public Op {
 public:
  /// `all`: the heads of all ranks. Only what part() makes of it runs.
  explicit KeyGather(const HeadsShape& all) : KeyGather(all, {}) {}
  std::unique_ptr<Op> part(const TensorShare& share) const override {
    return std::make_unique<KeyGather>(KeyGather(all_, share));
  }
  int64_t scratch_bytes(const OpExtent& extent, OpPass pass) const override;
  void forward(const OpArgs&) const override;
  void backward_input(const OpArgs&) const override;
  TensorMeeting meeting(OpPass pass) const override;
  void finish(const OpArgs&, OpPass, const MeetingRows&) const override;

 private:
  KeyGather(const HeadsShape& all, const TensorShare& share)
      : all_(all),
        share_(share),
        query_(share.of(all.heads).size() * all.head_dim),
        sharers_(std::max<int64_t>(1, all.sharers(share.size))) {}
  /// Of the keys of its head, or of the values.
  int64_t own() const { return all_.head_dim / sharers_; }

  HeadsShape all_;
  TensorShare share_;
  int64_t query_;    ///< columns of queries here
  int64_t sharers_;  ///< ranks that share a key head
};

}  // namespace trainyard::engine
