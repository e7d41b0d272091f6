trainyard_test(bench_comm_case_test TIER unit
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench/comm/case_test.cc DEPS bench_comm)
