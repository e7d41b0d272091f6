trainyard_test(bench_comm_test TIER process SOURCES ${CMAKE_CURRENT_LIST_DIR}/bench/comm_test.cc
               DEPS process_test_support nlohmann_json::nlohmann_json)
add_dependencies(bench_comm_test trainyard)
