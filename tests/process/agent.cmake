trainyard_library(process_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/child_process.cc
  DEPS common_base)
# Not a part of what is installed: it stands in for trainyard-worker.
add_executable(trainyard-fake-rank ${CMAKE_CURRENT_LIST_DIR}/../support/fake_rank.cc)
target_link_libraries(trainyard-fake-rank PRIVATE common_contract common_io)

trainyard_test(process_host_test TIER process
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent/process_host_test.cc
  DEPS agent_process process_test_support)
# gRPC, which is not instrumented, gives false reports under the thread sanitizer.
trainyard_test(run_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/run/run_test.cc
  DEPS process_test_support nlohmann_json::nlohmann_json)
add_dependencies(run_test trainyard trainyard-agent trainyard-fake-rank)
