trainyard_library(process_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/child_process.cc
  DEPS common_base test_paths)
# Not a part of what is installed: it stands in for trainyard-worker.
add_executable(trainyard-fake-rank ${CMAKE_CURRENT_LIST_DIR}/../support/fake_rank.cc)
target_link_libraries(trainyard-fake-rank PRIVATE common_contract common_io)

trainyard_test(process_host_test TIER process MEMORY
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent/process_host_test.cc
  DEPS agent_process process_test_support)
add_dependencies(process_host_test trainyard-fake-nvml)
# A library that ends whatever program loads it; itself without what a sanitizer would want loaded before.
add_library(trainyard-unwanted SHARED ${CMAKE_CURRENT_LIST_DIR}/agent/unwanted_library.cc)
target_compile_options(trainyard-unwanted PRIVATE -fno-sanitize=all)
target_link_options(trainyard-unwanted PRIVATE -fno-sanitize=all)
trainyard_test(agent_bundle_test TIER process MEMORY
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent/bundle_test.cc
  DEPS agent_process process_test_support)
add_dependencies(agent_bundle_test trainyard-agent trainyard-unwanted)
trainyard_library(ledger_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/ledger_check.cc
  DEPS common_text nlohmann_json::nlohmann_json)
trainyard_library(run_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/run_fixture.cc
  DEPS process_test_support ledger_test_support GTest::gmock)
# gRPC, which is not instrumented, gives false reports under the thread sanitizer.
foreach(name run run_crash run_faults run_in_place run_memory run_timing)
  set(timing)
  if(name STREQUAL "run_timing")
    set(timing TIMING)
  endif()
  trainyard_test(${name}_test TIER process ${timing} WAITS TIMEOUT 600 NOT_UNDER thread
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/run/${name}_test.cc
    DEPS run_test_support checkpoint_test_support)
  add_dependencies(${name}_test trainyard trainyard-agent trainyard-worker trainyard-fake-rank)
endforeach()
trainyard_test(kill_schedule_test TIER process WAITS TIMEOUT 1800 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/faults/kill_schedule_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/faults/kill_schedule.cc
  DEPS run_test_support)
add_dependencies(kill_schedule_test trainyard trainyard-agent trainyard-worker)
