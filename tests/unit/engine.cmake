trainyard_test(layout_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/layout/layout_test.cc DEPS common_layout)
trainyard_test(portable_math_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/math/portable_test.cc DEPS common_math)
