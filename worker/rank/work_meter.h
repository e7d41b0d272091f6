#pragma once

#include "common/base/time.h"
#include "worker/program/instruction.h"

namespace trainyard::engine {

/// How long a rank's own passes take in a step: forward and backward with their data, not the waits
/// for weights within them nor what else meets the other ranks. That tells ranks apart
/// whose steps all take the same time.
class WorkMeter {
 public:
  void begin_step() {
    work_ = Duration::zero();
    working_ = false;
  }
  /// The instruction before has ended, this one begins.
  void instruction(InstructionKind kind, MonoTime now) {
    pause(now);
    working_ = is_pass(kind);
    since_ = now;
  }
  /// Waits for other ranks begin or end within the instruction.
  void wait(bool begins, MonoTime now) {
    if (begins) {
      waiting_in_work_ = working_;
      pause(now);
    } else if (waiting_in_work_) {
      working_ = true;
      since_ = now;
    }
  }
  /// Of the step that ends now.
  Duration end_step(MonoTime now) {
    pause(now);
    return work_;
  }

 private:
  void pause(MonoTime now) {
    if (working_) work_ += now - since_;
    working_ = false;
  }

  Duration work_{0};
  bool working_ = false;
  bool waiting_in_work_ = false;
  MonoTime since_;
};

}  // namespace trainyard::engine
