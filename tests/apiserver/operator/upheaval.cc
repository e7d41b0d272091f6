#include "tests/apiserver/operator/upheaval.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/audited_plane.h"
#include "tests/support/plane_faults.h"

namespace trainyard::apiserver {

using testing_support::AuditEvent;

/// What a test that failed has left dead is no concern of the next.
void UpheavalTest::SetUp() {
  testing_support::revive(plane().folder());
  OperatorTest::SetUp();
}

void UpheavalTest::TearDown() {
  if (is_judged_) {
    std::vector<AuditEvent> events = testing_support::read_audit_log(plane().audit_log());
    std::erase_if(events,
                  [&](const AuditEvent& event) { return event.name_space != name_space(); });
    for (const std::string& violation :
         testing_support::violations_on(plane(), events, get({"pods"}), get({"tj"}))) {
      if (judges_ledgers_ || violation.find(" S7: ") == std::string::npos)
        ADD_FAILURE() << violation;
    }
  }
  OperatorTest::TearDown();
  give_rights();
}

void UpheavalTest::take_rights() {
  const Json there = get({"clusterrolebinding", "trainyard-operator"});
  ASSERT_TRUE(there.is_object());
  binding_ =
      Json({{"apiVersion", there["apiVersion"]},
            {"kind", there["kind"]},
            {"metadata", {{"name", "trainyard-operator"}, {"labels", there["metadata"]["labels"]}}},
            {"roleRef", there["roleRef"]},
            {"subjects", there["subjects"]}})
          .dump();
  must({"delete", "clusterrolebinding", "trainyard-operator"});
  ASSERT_TRUE(wait_until([&] {
    return kubectl({"auth", "can-i", "create", "pods",
                    std::string("--as=") + testing_support::kOperatorUser})
               .exit_code != 0;
  }));
}

void UpheavalTest::give_rights() {
  if (!binding_.empty()) must_with({"create"}, std::exchange(binding_, std::string()));
}

}  // namespace trainyard::apiserver
