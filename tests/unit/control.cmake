set(control_tests ${CMAKE_CURRENT_LIST_DIR}/control)
set(control_support ${CMAKE_CURRENT_LIST_DIR}/../support)
trainyard_library(control_test_support
  SOURCES ${control_support}/memory_cluster.cc
  DEPS control_core)
trainyard_test(control_life_test TIER unit
  SOURCES ${control_tests}/completions_test.cc ${control_tests}/configuration_test.cc ${control_tests}/elastic_life_test.cc
          ${control_tests}/life_test.cc ${control_tests}/refusal_test.cc ${control_tests}/restart_test.cc
          ${control_tests}/status_size_test.cc ${control_tests}/partial_gang_test.cc ${control_tests}/trouble_test.cc ${control_tests}/unseen_pods_test.cc
  DEPS control_test_support)
trainyard_test(control_story_test TIER unit
  SOURCES ${control_tests}/plan_edges_test.cc ${control_tests}/plan_status_test.cc ${control_tests}/story_test.cc
  DEPS control_test_support nlohmann_json::nlohmann_json)
trainyard_test(control_cluster_test TIER unit
  SOURCES ${control_tests}/memory_cluster_test.cc ${control_support}/cluster_conformance.cc
  DEPS control_test_support)
trainyard_test(control_crash_test TIER unit
  SOURCES ${control_tests}/crash_test.cc
  DEPS control_test_support)
trainyard_library(control_local_test_support
  SOURCES ${control_support}/local_world.cc
  DEPS control_local GTest::gtest)
trainyard_binary(control_orphan_maker
  SOURCES ${control_tests}/local/orphan_maker.cc
  DEPS control_local_test_support)
set_target_properties(control_orphan_maker PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
trainyard_test(control_local_test TIER unit THREADED
  SOURCES ${control_tests}/local/local_cluster_test.cc ${control_tests}/local/adoption_test.cc
          ${control_tests}/local/job_store_test.cc ${control_tests}/local/references_test.cc ${control_support}/cluster_conformance.cc
  DEPS control_local_test_support)
add_dependencies(control_local_test control_orphan_maker)
trainyard_test(control_facts_test TIER unit
  SOURCES ${control_tests}/ends_alike_test.cc ${control_tests}/facts_test.cc ${control_tests}/in_place_test.cc
          ${control_tests}/kept_pods_test.cc ${control_tests}/liveness_test.cc ${control_tests}/lost_memory_test.cc
          ${control_tests}/progress_test.cc ${control_tests}/restart_scope_test.cc ${control_tests}/spares_test.cc
          ${control_tests}/worker_image_test.cc
  DEPS control_test_support)
trainyard_test(goodput_ledger_test TIER unit
  SOURCES ${control_tests}/goodput/ledger_test.cc
  DEPS control_goodput)
trainyard_test(goodput_life_test TIER unit
  SOURCES ${control_tests}/goodput/life_test.cc
  DEPS control_test_support)
trainyard_test(control_policies_test TIER unit
  SOURCES ${control_tests}/pod_spec_test.cc ${control_tests}/policies_test.cc
          ${control_tests}/policy_edges_test.cc
  DEPS control_core)
trainyard_test(control_reconciler_test TIER unit THREADED
  SOURCES ${control_tests}/apply_test.cc ${control_tests}/lost_status_test.cc
          ${control_tests}/outcome_test.cc ${control_tests}/reconciler_test.cc
          ${control_tests}/reconciler_view_test.cc ${control_tests}/retry_test.cc
  DEPS control_test_support Threads::Threads)
trainyard_test(ledger_check_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/support/ledger_check_test.cc
  DEPS ledger_test_support)
trainyard_test(control_queue_test TIER unit THREADED
  SOURCES ${control_tests}/queue/work_queue_test.cc
  DEPS control_queue)
trainyard_test(control_front_test TIER unit
  SOURCES ${control_tests}/front/http2_gate_test.cc ${control_tests}/front/places_test.cc
  DEPS control_front)
