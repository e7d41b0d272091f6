# The tier `apiserver`: a real control plane (tools/kubernetes), one for all tests of a run, which ctest's
# fixture starts before the first and ends after the last.
set(trainyard_plane ${CMAKE_BINARY_DIR}/plane)
add_test(NAME plane_up COMMAND ${CMAKE_CURRENT_LIST_DIR}/plane up ${trainyard_plane})
add_test(NAME plane_down COMMAND ${CMAKE_CURRENT_LIST_DIR}/plane down ${trainyard_plane})
set_tests_properties(plane_up PROPERTIES LABELS apiserver TIMEOUT 300 FIXTURES_SETUP plane)
set_tests_properties(plane_down PROPERTIES LABELS apiserver TIMEOUT 60 FIXTURES_CLEANUP plane)

# trainyard_apiserver_test(NAME SOURCES ... [DEPS ...] [TIMEOUT s] [SERIAL])
function(trainyard_apiserver_test name)
  trainyard_test(${name} TIER apiserver WAITS ${ARGN})
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED plane
    ENVIRONMENT TRAINYARD_TEST_PLANE=${trainyard_plane})
endfunction()

trainyard_library(apiserver_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/api_reader.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/control_plane.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/plane_faults.cc
  DEPS process_test_support http_test_support operator_http nlohmann_json::nlohmann_json GTest::gtest)

set(here ${CMAKE_CURRENT_LIST_DIR}/api)
# Two lists of manifests with the same short words for what is in them.
set_source_files_properties(${here}/bad_manifests.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
trainyard_apiserver_test(apiserver_crd_test
  SOURCES ${here}/crd_test.cc ${here}/bad_manifests.cc
  DEPS apiserver_test_support common_api)
trainyard_apiserver_test(apiserver_refusal_test
  SOURCES ${here}/refusal_test.cc ${here}/bad_manifests.cc
  DEPS apiserver_test_support)
trainyard_apiserver_test(apiserver_change_test
  SOURCES ${here}/change_test.cc ${here}/bad_manifests.cc
  DEPS apiserver_test_support)

if(TARGET trainyard-operator)
  include(${CMAKE_CURRENT_LIST_DIR}/operator/operator.cmake)
endif()
