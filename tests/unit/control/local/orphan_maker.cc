// Plays a `trainyard run` that is killed: opens a run directory, starts pods, says so, and waits.
// Usage: orphan_maker RUN_DIR SCRIPT
#include <cstdio>
#include <unistd.h>

#include "control/pod_spec.h"
#include "tests/support/local_world.h"

int main(int argc, char** argv) {
  using namespace trainyard;
  if (argc != 3) return 64;
  const SystemClock clock;
  auto cluster =
      control::local::LocalCluster::open(testing_support::script_options(argv[1], clock, argv[2]));
  if (!cluster) {
    std::fprintf(stderr, "%s\n", cluster.error().message.c_str());
    return 70;
  }
  const auto observed = (*cluster)->observe((*cluster)->key());
  if (!observed) return 70;
  for (int index = 0; index < 2; ++index) {
    const auto spec = control::make_pod_spec(observed->metadata, observed->spec, index, 1, 2);
    if (!(*cluster)->create_pod(spec)) return 70;
  }
  std::printf("ready\n");
  std::fflush(stdout);
  while (true)
    ::pause();
}
