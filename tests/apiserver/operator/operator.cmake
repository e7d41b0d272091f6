# Tests of trainyard-operator against the control plane. The last one judges what the others have left in the
# audit log.
trainyard_library(operator_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../../support/operator_process.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/audit_log.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/audited_plane.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/invariants.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/ledger_check.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/trainyard_command.cc
  DEPS apiserver_test_support common_text)

set(here ${CMAKE_CURRENT_LIST_DIR})
trainyard_apiserver_test(operator_lifecycle_test
  SOURCES ${here}/lifecycle_test.cc
  DEPS operator_test_support control_core)
trainyard_apiserver_test(operator_parked_test
  SOURCES ${here}/parked_test.cc ${here}/parked_manifests.cc ${here}/../api/bad_manifests.cc
  DEPS operator_test_support)
foreach(name admission budget elastic ending image kill kubectl leftover policy)
  trainyard_apiserver_test(operator_${name}_test SOURCES ${here}/${name}_test.cc DEPS operator_test_support)
endforeach()
# Real agents and ranks in place of pods' containers.
trainyard_library(stream_test_support SOURCES ${here}/stream.cc ${here}/../../support/pod_runner.cc DEPS operator_test_support)
trainyard_apiserver_test(operator_stream_test TIMEOUT 600 SOURCES ${here}/stream_test.cc DEPS stream_test_support)
add_dependencies(operator_stream_test trainyard trainyard-agent trainyard-worker)
set_tests_properties(operator_stream_test PROPERTIES PROCESSORS 2) # its ranks compute
# A fault proxy between the operator and the API server.
trainyard_library(proxy_test_support
  SOURCES ${here}/../../support/gang_workload.cc ${here}/../../support/operator_pair.cc
          ${here}/../../support/proxied_operator.cc ${here}/../../support/proxy_lanes.cc
  DEPS operator_test_support fault_proxy_support operator_http fmt::fmt
  APART ${here}/../../support/operator_pair.cc)
trainyard_apiserver_test(operator_proxy_test SMOKE TIMEOUT 600
  SOURCES ${here}/proxy_test.cc
  DEPS proxy_test_support)
foreach(name proxy_crash proxy_outage)
  trainyard_apiserver_test(operator_${name}_test TIMEOUT 600
    SOURCES ${here}/${name}_test.cc
    DEPS proxy_test_support)
endforeach()
trainyard_apiserver_test(operator_proxy_leader_test TIMEOUT 1800
  SOURCES ${here}/proxy_leader_test.cc ${here}/proxy_lease_test.cc
  DEPS proxy_test_support)
# These take minutes, and TRAINYARD_TEST_SEED chooses the writes: tools/explore runs them.
set_property(TEST operator_proxy_crash_test operator_proxy_leader_test operator_proxy_outage_test APPEND PROPERTY LABELS explore)
# These two have one Lease.
trainyard_apiserver_test(operator_leader_test
  SOURCES ${here}/leader_test.cc
  DEPS operator_test_support)
trainyard_apiserver_test(operator_partition_test
  SOURCES ${here}/partition_test.cc ${here}/../../support/tcp_forwarder.cc
  DEPS operator_test_support common_base)
set_tests_properties(operator_leader_test operator_partition_test PROPERTIES RESOURCE_LOCK lease)
# Has a control plane of its own, and does to it what others would not bear.
trainyard_test(operator_upheaval_test TIER apiserver WAITS TIMEOUT 600
  SOURCES ${here}/outage_test.cc ${here}/rights_test.cc ${here}/upgrade_test.cc ${here}/upheaval.cc
  DEPS operator_test_support common_io)
set_tests_properties(operator_upheaval_test PROPERTIES ENVIRONMENT TRAINYARD_TEST_PLANE= RESOURCE_LOCK second_plane)
# Builds programs of an earlier commit first, and gives its definition to a control plane of its own.
trainyard_test(operator_earlier_build_test TIER apiserver TIMEOUT 5400 SOURCES ${here}/earlier_build_test.cc DEPS stream_test_support)
set_tests_properties(operator_earlier_build_test PROPERTIES LABELS "apiserver;long" ENVIRONMENT TRAINYARD_TEST_PLANE= RESOURCE_LOCK second_plane)
add_dependencies(operator_earlier_build_test trainyard trainyard-agent trainyard-operator trainyard-worker)
trainyard_apiserver_test(operator_audit_test
  SOURCES ${here}/audit_test.cc
  DEPS operator_test_support)
set(operator_tests admission budget elastic ending image kill kubectl leader leftover lifecycle parked partition policy proxy proxy_crash proxy_leader proxy_outage stream)
list(TRANSFORM operator_tests REPLACE "(.+)" "operator_\\1_test" OUTPUT_VARIABLE audited_tests)
set_tests_properties(operator_audit_test PROPERTIES DEPENDS "${audited_tests}")
set_property(TEST operator_audit_test APPEND PROPERTY LABELS exact) # alone it would judge an empty log
foreach(name ${operator_tests} audit upheaval)
  add_dependencies(operator_${name}_test trainyard-operator)
endforeach()

# The suite that every Cluster must pass, on a real API server.
trainyard_apiserver_test(apiserver_conformance_test
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/conformance_test.cc ${CMAKE_CURRENT_LIST_DIR}/../../support/cluster_conformance.cc
          ${CMAKE_CURRENT_LIST_DIR}/../../support/kube_world.cc
  DEPS apiserver_test_support operator_cluster operator_http)
