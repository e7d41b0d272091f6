# What runs the tests and judges them.
if(NOT TRAINYARD_SANITIZE)
  add_test(NAME runner_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/runner/runner_test.py ${CMAKE_BINARY_DIR})
  set_tests_properties(runner_test PROPERTIES LABELS process TIMEOUT 120)
endif()
