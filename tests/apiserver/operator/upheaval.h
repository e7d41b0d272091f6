#pragma once

#include <string>

#include "tests/support/operator_process.h"

namespace trainyard::apiserver {

/// Tests that do to a control plane what no other test would bear. They share one of their own. It
/// is as it was after each of them, and what the operator did is judged from its audit log.
class UpheavalTest : public testing_support::OperatorTest {
 protected:
  void SetUp() override;
  void TearDown() override;

  /// The operator's ServiceAccount loses its rights in the whole cluster, and has them again.
  void take_rights();
  void give_rights();

  /// The test kills what keeps the log: entries may be missing, and nothing follows from it.
  void leave_unjudged() { is_judged_ = false; }
  /// Where statuses were stored without a ledger.
  void leave_ledgers_unjudged() { judges_ledgers_ = false; }

 private:
  bool is_judged_ = true;
  bool judges_ledgers_ = true;
  std::string binding_;  ///< that was taken away, as JSON
};

}  // namespace trainyard::apiserver
