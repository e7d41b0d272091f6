# gRPC, which is not instrumented, gives false reports under the thread sanitizer.
trainyard_test(metrics_test TIER process TIMEOUT 300 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/metrics/metrics_test.cc
  DEPS run_test_support http_test_support)
add_dependencies(metrics_test trainyard trainyard-agent trainyard-fake-nvml trainyard-fake-rank)
