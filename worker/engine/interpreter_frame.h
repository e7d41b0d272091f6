#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/engine/interpreter.h"
#include "worker/engine/sequence_slices.h"

namespace trainyard::engine {

/// The state of one run.
struct Interpreter::Frame {
  StepSetup setup;       // of the run, or the last one; its bounds: what is left of them
  int instruction = -1;  // now running, or the last one; -1: none
  ControlWord control;   // until the kernels' words are read, the targets that the host counts
  comm::WorkPtr control_work;
  bool has_parts = false;  // that its device is told of
  uint64_t part_key = 0;
  bool updating = false;  // the control word is reduced and the update begun
  // By unit; over the parts, then over the copies, then of what these have rounded.
  std::vector<comm::WorkPtr> reduce_work;
  std::vector<comm::WorkPtr> gather_work;  // by unit; of the last step until who reads it waits
  std::array<std::vector<comm::WorkPtr>, comm::kChannels> messages;  // by stage
  /// Of activations that are received, by micro-batch: several may be.
  struct Receipt {
    int micro_batch;
    int stage;
    comm::WorkPtr work;
  };
  std::vector<Receipt> receipts;
  std::vector<std::vector<int64_t>> counts;              // by unit: elements of each rank's part
  std::vector<std::vector<int64_t>> rounded_counts;      // by unit: of each copy's share of it
  std::vector<std::optional<data::MicroBatch>> batches;  // read in this run
  std::vector<SequenceSlices> shares;  // of them, where context ranks share sequences
  std::vector<SequenceSlices> slices;  // of these, where tensor ranks have slices
  std::vector<char> gradient_is_new;   // by parameter: nothing was added to its sums yet
  // By parameter: W of a node that still adds to its sums in this step.
  std::vector<int64_t> additions_left;
  std::vector<char> squared;      // by parameter: its squares are in the words
  std::vector<char> accumulated;  // by unit: of an earlier micro-batch of the step
};

}  // namespace trainyard::engine
