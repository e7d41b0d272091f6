#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/api/bad_manifests.h"
#include "tests/support/control_plane.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;
using testing_support::CommandResult;

class RefusalTest : public testing_support::ApiServerTest {
 protected:
  static std::string changed(Base base, std::string_view patch) {
    Json job = Json::parse(good_manifest(base));
    job.merge_patch(Json::parse(patch));
    return job.dump();
  }
};

TEST_F(RefusalTest, TheManifestsThatAreChangedAreGood) {
  for (const Base base : {Base::kTemplate, Base::kEngine}) {
    must_with({"create", "--dry-run=server"}, std::string(good_manifest(base)));
  }
}

TEST_F(RefusalTest, EveryBadManifestIsRefusedWithItsField) {
  ASSERT_GE(bad_manifests().size(), 100U);
  for (size_t i = 0; i < bad_manifests().size(); ++i) {
    const BadManifest& bad = bad_manifests()[i];
    const CommandResult result =
        kubectl_with({"create", "--dry-run=server"}, changed(bad.base, bad.patch));
    EXPECT_NE(result.exit_code, 0) << bad.patch << "\nwas taken";
    EXPECT_THAT(result.errors, HasSubstr(bad.field)) << bad.patch;
  }
}

}  // namespace
}  // namespace trainyard::apiserver
