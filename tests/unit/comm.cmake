set(comm_unit_tests ${CMAKE_CURRENT_LIST_DIR}/worker/comm)
trainyard_test(comm_reduce_test TIER unit SOURCES ${comm_unit_tests}/host/reduce_test.cc
               DEPS worker_comm)
trainyard_test(comm_wire_formats_test TIER unit SOURCES ${comm_unit_tests}/host/wire_formats_test.cc
               DEPS worker_comm)
trainyard_test(comm_copy_test TIER unit SOURCES ${comm_unit_tests}/host/copy_test.cc DEPS worker_comm)
trainyard_test(comm_ring_order_test TIER unit SOURCES ${comm_unit_tests}/host/ring_order_test.cc
               DEPS worker_comm)
trainyard_test(comm_pool_test TIER unit SOURCES ${comm_unit_tests}/host/pool_test.cc DEPS worker_comm)
