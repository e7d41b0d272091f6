trainyard_test(full_disk_test TIER process TIMEOUT 300
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/disk/full_disk_test.cc DEPS process_test_support GTest::gmock)
add_dependencies(full_disk_test trainyard)
