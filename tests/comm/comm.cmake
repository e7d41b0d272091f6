set(comm_tests ${CMAKE_CURRENT_LIST_DIR}/worker/comm)
trainyard_library(tests_comm_world SOURCES ${comm_tests}/world.cc ${comm_tests}/process.cc
                  ${comm_tests}/reference.cc
                  DEPS worker_comm GTest::gtest)
trainyard_test(comm_collectives_test TIER comm TIMEOUT 900 SOURCES ${comm_tests}/collectives_test.cc
               DEPS tests_comm_world)
trainyard_test(comm_rooted_and_pairwise_test TIER comm TIMEOUT 900
               SOURCES ${comm_tests}/rooted_and_pairwise_test.cc DEPS tests_comm_world)
trainyard_test(comm_groups_test TIER comm TIMEOUT 900 SOURCES ${comm_tests}/groups_test.cc
               DEPS tests_comm_world)
trainyard_test(gather_test TIER comm SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/state/gather_test.cc
               DEPS tests_comm_world worker_state)
trainyard_test(comm_faults_test TIER comm SOURCES ${comm_tests}/faults_test.cc DEPS tests_comm_world)
trainyard_test(comm_timing_test TIER comm TIMING
               SOURCES ${comm_tests}/timing_test.cc ${comm_tests}/any_operation.cc DEPS tests_comm_world)

# One rank as a process, for the tests that kill and stop it.
trainyard_binary(comm_rank SOURCES ${comm_tests}/rank_main.cc ${comm_tests}/any_operation.cc
                 DEPS worker_comm)
set_target_properties(comm_rank PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
trainyard_test(comm_processes_test TIER comm TIMING SOURCES ${comm_tests}/processes_test.cc
               DEPS tests_comm_world)
add_dependencies(comm_processes_test comm_rank)
trainyard_test(comm_strangers_test TIER comm SOURCES ${comm_tests}/strangers_test.cc
               DEPS tests_comm_world)
trainyard_test(comm_meeting_test TIER comm SOURCES ${comm_tests}/meeting_test.cc
               DEPS tests_comm_world)
trainyard_test(comm_operation_faults_test TIER comm
               SOURCES ${comm_tests}/operation_faults_test.cc ${comm_tests}/any_operation.cc
               DEPS tests_comm_world)
add_dependencies(comm_operation_faults_test comm_rank)
trainyard_test(comm_large_test TIER comm TIMEOUT 600 SOURCES ${comm_tests}/large_test.cc
               DEPS tests_comm_world)
trainyard_test(checkpoint_group_test TIER comm
               SOURCES ${comm_tests}/../checkpoint/communicator_group_test.cc
               DEPS tests_comm_world worker_checkpoint common_layout)
# These compare values: a difference is never a false alarm.
set_property(TEST comm_collectives_test comm_rooted_and_pairwise_test comm_groups_test APPEND PROPERTY LABELS exact)
