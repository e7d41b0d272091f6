trainyard_test(bench_comm_case_test TIER unit
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench/comm/case_test.cc DEPS bench_comm)
add_test(NAME bench_suite_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/bench/suite_test.py)
set_tests_properties(bench_suite_test PROPERTIES LABELS unit TIMEOUT 120)
