set(operator_tests ${CMAKE_CURRENT_LIST_DIR}/operator)
trainyard_test(operator_render_test TIER unit
  SOURCES ${operator_tests}/render/agent_test.cc ${operator_tests}/render/companions_test.cc
          ${operator_tests}/render/environment_test.cc ${operator_tests}/render/pod_test.cc
  DEPS operator_render operator_cluster agent_core nlohmann_json::nlohmann_json)
trainyard_test(operator_cluster_test TIER unit THREADED
  SOURCES ${operator_tests}/cluster/listed_pods_test.cc ${operator_tests}/cluster/own_writes_test.cc
          ${operator_tests}/cluster/parallel_calls_test.cc ${operator_tests}/cluster/room_test.cc ${operator_tests}/cluster/taken_pods_test.cc
          ${operator_tests}/cluster/views_test.cc
  DEPS operator_cluster nlohmann_json::nlohmann_json)
trainyard_test(operator_objects_test TIER unit THREADED
  SOURCES ${operator_tests}/cluster/budget_test.cc ${operator_tests}/cluster/companions_test.cc
          ${operator_tests}/cluster/endpoints_left_test.cc
          ${operator_tests}/cluster/endpoints_test.cc ${operator_tests}/cluster/event_recorder_test.cc
          ${operator_tests}/cluster/kube_cluster_test.cc ${operator_tests}/cluster/kube_pods_test.cc
          ${operator_tests}/cluster/ledgers_test.cc ${operator_tests}/cluster/refusals_test.cc
          ${operator_tests}/cluster/scope_test.cc
  DEPS operator_cluster kube_test_support nlohmann_json::nlohmann_json)
trainyard_test(operator_runtime_test TIER unit THREADED
  SOURCES ${operator_tests}/runtime/leader_election_test.cc ${operator_tests}/runtime/options_test.cc
          ${operator_tests}/runtime/operator_metrics_test.cc ${operator_tests}/runtime/submit_test.cc
  DEPS operator_runtime kube_test_support nlohmann_json::nlohmann_json)
