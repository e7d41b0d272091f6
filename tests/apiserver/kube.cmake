# The client and the cache against a real API server. After apiserver.cmake, which comes first by name.
set(here ${CMAKE_CURRENT_LIST_DIR}/kube)
trainyard_apiserver_test(apiserver_client_test
  SOURCES ${here}/client_apiserver_test.cc
  DEPS operator_http operator_cache common_io apiserver_test_support)
# Has a control plane of its own, which it kills.
trainyard_test(apiserver_restart_test TIER apiserver WAITS
  SOURCES ${here}/restart_apiserver_test.cc
  DEPS operator_http operator_cache apiserver_test_support)
set_tests_properties(apiserver_restart_test PROPERTIES RESOURCE_LOCK second_plane)
