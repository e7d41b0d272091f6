trainyard_test(layout_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/layout/layout_test.cc DEPS common_layout)
