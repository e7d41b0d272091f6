# The tier `cluster`: Kubernetes with real kubelets (tools/kind), one cluster for all tests of a run, which
# ctest's fixture starts before the first and ends after the last. Only what computes runs beside the tests, at a lower
# priority (tools/run_ctest): on a machine that others keep busy a node that is well misses its heartbeats.
if(TRAINYARD_SANITIZE)
  return() # the operator runs from an image there, as users have it
endif()
set(trainyard_cluster ${CMAKE_BINARY_DIR}/cluster)
add_test(NAME cluster_up COMMAND ${CMAKE_CURRENT_LIST_DIR}/cluster up ${trainyard_cluster} ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
add_test(NAME cluster_down COMMAND ${CMAKE_CURRENT_LIST_DIR}/cluster down ${trainyard_cluster})
set_tests_properties(cluster_up PROPERTIES LABELS "cluster;explore" TIMEOUT 600 FIXTURES_SETUP cluster
  DEPENDS plane_down) # two control planes at once only slow each other down
set_tests_properties(cluster_down PROPERTIES LABELS "cluster;explore" TIMEOUT 120 FIXTURES_CLEANUP cluster)

# trainyard_cluster_test(NAME SOURCES ... [DEPS ...] [TIMEOUT s] [LONG]): LONG leaves it to `make e2e` and
# `make test-long`, label `long`; else tools/explore runs it, too, label `explore`.
function(trainyard_cluster_test name)
  cmake_parse_arguments(ARG "LONG" "" "" ${ARGN})
  trainyard_test(${name} TIER cluster SERIAL ${ARG_UNPARSED_ARGUMENTS})
  set(length explore)
  if(ARG_LONG)
    set(length long)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "cluster;${length}")
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED cluster
    ENVIRONMENT TRAINYARD_TEST_CLUSTER=${trainyard_cluster})
endfunction()

if(TARGET trainyard-operator)
  trainyard_library(cluster_test_support
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/cluster_test.cc ${CMAKE_CURRENT_LIST_DIR}/../support/saving_job_test.cc
    DEPS operator_test_support)
  # What a hostile job runs; an image of it is made beside those of our programs.
  add_executable(trainyard-test-intruder ${CMAKE_CURRENT_LIST_DIR}/intruder.cc)
  target_link_libraries(trainyard-test-intruder PRIVATE agent_core control_coordinator_grpc common_proto)
  set_target_properties(trainyard-test-intruder PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  set(long_ones agent chart hostile monitoring node_loss outage torchrun) # lost nodes and outages are waited for
  foreach(name agent chart checkpoint hostile job monitoring node_loss outage torchrun)
    set(length)
    if(name IN_LIST long_ones)
      set(length LONG)
    endif()
    set(timeout 900)
    if(name STREQUAL node_loss)
      set(timeout 2400)
    endif()
    trainyard_cluster_test(cluster_${name}_test ${length} TIMEOUT ${timeout}
      SOURCES ${CMAKE_CURRENT_LIST_DIR}/${name}_test.cc
      DEPS cluster_test_support)
    add_dependencies(cluster_${name}_test trainyard trainyard-agent trainyard-operator trainyard-worker trainyard-test-intruder)
  endforeach()
endif()
