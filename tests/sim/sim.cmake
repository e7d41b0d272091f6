# The tier `sim`: the operator's core in one thread over a simulated API server (tests/support/sim).
set(sim_support ${CMAKE_CURRENT_LIST_DIR}/../support)
set(sim_tests ${CMAKE_CURRENT_LIST_DIR}/operator)
trainyard_library(sim_test_support
  SOURCES ${sim_support}/audit_log.cc ${sim_support}/invariants.cc ${sim_support}/ledger_check.cc ${sim_support}/sim/api_server.cc
          ${sim_support}/sim/controllers.cc ${sim_support}/sim/play.cc ${sim_support}/sim/random_story.cc
          ${sim_support}/sim/replica.cc
          ${sim_support}/sim/sim_cluster.cc ${sim_support}/sim/store.cc ${sim_support}/sim/transport.cc
          ${sim_support}/sim/watch_server.cc ${sim_support}/sim/workloads.cc
  DEPS operator_cluster control_core common_text nlohmann_json::nlohmann_json
  APART ${sim_support}/sim/random_story.cc)
trainyard_test(sim_conformance_test TIER sim
  SOURCES ${sim_tests}/conformance_test.cc ${sim_support}/cluster_conformance.cc
  DEPS sim_test_support)
trainyard_test(sim_exhaustive_test TIER sim TIMEOUT 900
  SOURCES ${sim_tests}/exhaustive_test.cc
  DEPS sim_test_support)
trainyard_test(sim_in_place_test TIER sim TIMEOUT 900
  SOURCES ${sim_tests}/fatal_failure_test.cc ${sim_tests}/in_place_test.cc ${sim_tests}/joining_test.cc
          ${sim_tests}/orders_test.cc
  DEPS agent_core control_test_support)
trainyard_test(sim_random_test TIER sim TIMEOUT 600
  SOURCES ${sim_tests}/random_test.cc
  DEPS sim_test_support)
set_tests_properties(sim_random_test PROPERTIES PROCESSORS 4) # all of two cores
trainyard_test(sim_server_test TIER sim
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/server/api_server_test.cc
  DEPS sim_test_support)
