# gRPC, which is not instrumented, gives false reports under the thread sanitizer.
trainyard_test(formats_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/formats/formats_test.cc
  DEPS process_test_support cli_report GTest::gmock nlohmann_json::nlohmann_json)
add_dependencies(formats_test trainyard trainyard-agent trainyard-worker)
