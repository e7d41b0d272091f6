#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apiserver/api/bad_manifests.h"
#include "tests/support/control_plane.h"

namespace trainyard::apiserver {
namespace {

using testing::HasSubstr;

constexpr char kApiVersion[] = "trainyard.dev/v1alpha1";
constexpr char kKind[] = "TrainingJob";

class RefusalTest : public testing_support::ApiServerTest {
 protected:
  static Json changed(Base base, std::string_view patch) {
    Json job = Json::parse(good_manifest(base));
    job.merge_patch(Json::parse(patch));
    return job;
  }
  /// `kubectl create --dry-run=server`, of which each is a process that asks the same of the
  /// server.
  kube::ApiResult<Json> try_to_create(const Json& job) const {
    return api().create(
        kube::kTrainingJobs, name_space(), job,
        {.dry_run = kube::DryRun::kServer, .field_validation = kube::FieldValidation::kStrict});
  }
};

TEST_F(RefusalTest, TheManifestsThatAreChangedAreGood) {
  for (const Base base : {Base::kTemplate, Base::kEngine}) {
    must_with({"create", "--dry-run=server"}, std::string(good_manifest(base)));
    const auto made = try_to_create(Json::parse(good_manifest(base)));
    EXPECT_TRUE(made.has_value()) << made.error().message;
  }
}

TEST_F(RefusalTest, KubectlTellsTheField) {
  const BadManifest& bad = bad_manifests().front();
  const auto result =
      kubectl_with({"create", "--dry-run=server"}, changed(bad.base, bad.patch).dump());
  EXPECT_NE(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.errors, HasSubstr(bad.field));
}

TEST_F(RefusalTest, EveryBadManifestIsRefusedWithItsField) {
  ASSERT_GE(bad_manifests().size(), 100U);
  for (size_t i = 0; i < bad_manifests().size(); ++i) {
    const BadManifest& bad = bad_manifests()[i];
    const Json job = changed(bad.base, bad.patch);
    const auto made = try_to_create(job);
    ASSERT_FALSE(made.has_value()) << bad.patch << "\nwas taken";
    // Where to send another kind is kubectl's to find out.
    const bool is_ours =
        job.value("apiVersion", "") == kApiVersion && job.value("kind", "") == kKind;
    EXPECT_THAT(is_ours ? made.error().message
                        : kubectl_with({"create", "--dry-run=server"}, job.dump()).errors,
                HasSubstr(bad.field))
        << bad.patch;
  }
}

}  // namespace
}  // namespace trainyard::apiserver
