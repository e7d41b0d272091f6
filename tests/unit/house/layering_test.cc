#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/unit/house/include_rules.h"
#include "tests/unit/house/source_tree.h"

namespace trainyard::house {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string quoted(std::string_view target) { return "#include \"" + std::string(target) + "\"\n"; }
std::string angled(std::string_view target) { return "#include <" + std::string(target) + ">\n"; }

TEST(LayeringTest, RepositoryObeysTheRules) {
  const std::vector<SourceFile> files = read_source_tree(testing_support::source_folder());
  ASSERT_GT(files.size(), 30u) << "nothing was read from " << testing_support::source_folder();
  EXPECT_THAT(check_tree(files), IsEmpty());
}

TEST(IncludeRulesTest, FindsIncludesWithTheirLines) {
  const auto includes = includes_of("// #include \"a.h\"\n  #  include \"common/b.h\" // why\n" +
                                    angled("vector") + "int x;");
  ASSERT_EQ(includes.size(), 2u);
  EXPECT_EQ(includes[0].line, 2);
  EXPECT_EQ(includes[0].target, "common/b.h");
  EXPECT_TRUE(includes[0].quoted);
  EXPECT_EQ(includes[1].line, 3);
  EXPECT_EQ(includes[1].target, "vector");
  EXPECT_FALSE(includes[1].quoted);
}

struct Planted {
  std::string path;
  std::string text;
};

class PlantedViolationTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedViolationTest, IsFoundWithFileAndLine) {
  const SourceFile file{GetParam().path, "#pragma once\n" + GetParam().text};
  EXPECT_THAT(check_file(file), ElementsAre(HasSubstr(GetParam().path + ":2: ")));
}

INSTANTIATE_TEST_SUITE_P(
    EveryRule, PlantedViolationTest,
    testing::Values(Planted{"common/io/file.cc", quoted("control/plan.h")},
                    Planted{"common/io/file.cc", quoted("kernels/kernel_set.h")},
                    Planted{"kernels/cpu/gemm.cc", quoted("worker/model/op.h")},
                    Planted{"control/apply.cc", quoted("worker/train_loop.h")},
                    Planted{"worker/main.cc", quoted("control/plan.h")},
                    Planted{"worker/main.cc", quoted("operator/main.h")},
                    Planted{"operator/main.cc", quoted("worker/train_loop.h")},
                    Planted{"agent/main.cc", quoted("worker/train_loop.h")},
                    Planted{"cli/run.cc", quoted("operator/kube/client.h")},
                    Planted{"cli/run.cc", quoted("agent/rank_process.h")},
                    Planted{"worker/program/lower.cc", quoted("worker/comm/groups.h")},
                    Planted{"worker/memory/arena_plan.cc", quoted("worker/device/memory_source.h")},
                    Planted{"worker/model/model.cc", quoted("worker/device/memory_source.h")},
                    Planted{"worker/engine/engine.cc", quoted("worker/checkpoint/reader.h")},
                    Planted{"worker/engine/engine.cc", quoted("worker/rank/train_loop.h")},
                    Planted{"worker/data/sampler.cc", quoted("worker/engine/engine.h")},
                    Planted{"worker/data/sampler.cc", quoted("tests/support/temp_dir.h")},
                    Planted{"worker/data/sampler.cc", quoted("sampler.h")},
                    Planted{"worker/data/sampler.cc", quoted("../data/sampler.h")},
                    Planted{"control/plan.cc", quoted("control/cluster.h")},
                    Planted{"control/plan/plan.cc", quoted("common/base/clock.h")},
                    Planted{"control/policies/restart.cc", quoted("common/log/log.h")},
                    Planted{"control/policies/restart.cc", quoted("control/local_cluster.h")},
                    Planted{"control/apply.cc", angled("spdlog/spdlog.h")},
                    Planted{"agent/main.cc", angled("CLI/CLI.hpp")},
                    Planted{"agent/main.cc", angled("prometheus/registry.h")},
                    Planted{"cli/run.cc", angled("boost/asio.hpp")},
                    Planted{"agent/stream.cc", angled("grpcpp/grpcpp.h")},
                    Planted{"operator/kube/client.h", angled("cpprest/http_client.h")},
                    Planted{"operator/kube/http_transport.cc", angled("openssl/ssl.h")},
                    Planted{"operator/kube/client.cc", quoted("cli/output.h")},
                    Planted{"worker/model/model.cc", angled("cuda_runtime.h")},
                    Planted{"kernels/cpu/gemm.cc", angled("cuda_runtime.h")},
                    Planted{"kernels/simt/host.h", angled("cuda_runtime.h")},
                    Planted{"kernels/cuda/attention.cc", angled("cudnn_frontend.h")},
                    Planted{"worker/comm/host/socket.cc", angled("nccl.h")}));

TEST(IncludeRulesTest, AllowsWhatTheArchitectureAllows) {
  const std::vector<SourceFile> files = {
      {"kernels/cpu/gemm.cc", quoted("common/base/check.h") + quoted("kernels/kernel_set.h")},
      {"kernels/cuda/gemm.cu", angled("cuda_runtime.h")},
      {"worker/comm/nccl_communicator.cc", angled("nccl.h")},
      {"control/plan.cc", quoted("control/observed.h") + quoted("common/base/time.h")},
      {"cli/run.cc", quoted("control/cluster.h") + quoted("worker/data/token_file.h")},
      {"common/log/log.cc", angled("spdlog/spdlog.h")},
      {"operator/cache/store.h", quoted("operator/kube/client.h") + quoted("control/cluster.h")},
      {"operator/kube/http_transport.cc", angled("cpprest/http_client.h")},
      {"operator/kube/tls_setup.cc", angled("openssl/ssl.h")},
  };
  for (const SourceFile& file : files)
    EXPECT_THAT(check_file(file), IsEmpty());
}

TEST(IncludeRulesTest, RefusesASecondOwnerOfCpprest) {
  const SourceFile first{"operator/kube/http_client.cc", angled("cpprest/http_client.h")};
  const SourceFile second{"operator/kube/watch.cc", angled("pplx/pplxtasks.h")};
  EXPECT_THAT(check_tree({first}), IsEmpty());
  EXPECT_THAT(check_tree({first, second}), ElementsAre(HasSubstr("operator/kube/watch.cc")));
}

TEST(IncludeRulesTest, RefusesAnIncludeOfNothing) {
  const SourceFile user{"common/io/file.cc", quoted("common/io/fyle.h")};
  EXPECT_THAT(check_tree({user}), ElementsAre(HasSubstr("no such file")));
  const SourceFile generated{"control/stream.cc", quoted("common/proto/x.grpc.pb.h")};
  EXPECT_THAT(check_tree({generated}), ElementsAre(HasSubstr("no such file")));
  EXPECT_THAT(check_tree({generated, {"common/proto/x.proto", ""}}), IsEmpty());
}

}  // namespace
}  // namespace trainyard::house
