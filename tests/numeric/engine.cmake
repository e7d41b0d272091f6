trainyard_library(tests_engine_world SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/support/engine_world.cc
  DEPS worker_train worker_comm GTest::gtest)
trainyard_test(parity_test TIER numeric SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/parity_test.cc
  DEPS tests_engine_world nlohmann_json::nlohmann_json)
