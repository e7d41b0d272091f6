set(comm_tests ${CMAKE_CURRENT_LIST_DIR}/worker/comm)
trainyard_library(tests_comm_world SOURCES ${comm_tests}/world.cc DEPS worker_comm GTest::gtest)
trainyard_test(comm_collectives_test TIER comm SOURCES ${comm_tests}/collectives_test.cc
               DEPS tests_comm_world)
