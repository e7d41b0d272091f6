# What runs the tests and judges them.
if(NOT TRAINYARD_SANITIZE)
  add_test(NAME runner_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/runner/runner_test.py ${CMAKE_BINARY_DIR})
  set_tests_properties(runner_test PROPERTIES LABELS process TIMEOUT 600)
  add_test(NAME gates_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/runner/gates_test.py)
  set_tests_properties(gates_test PROPERTIES LABELS process TIMEOUT 600)
  # Form: formatting and scripts; clang-tidy in `make explore`, whole in `make test-long`.
  add_test(NAME lint_test COMMAND ${CMAKE_SOURCE_DIR}/tools/lint --form)
  add_test(NAME lint_all_test COMMAND ${CMAKE_SOURCE_DIR}/tools/lint --all)
  set_tests_properties(lint_test PROPERTIES LABELS form TIMEOUT 900 COST 900 PROCESSORS 2)
  set_tests_properties(lint_all_test PROPERTIES LABELS "form;long" TIMEOUT 21600 RUN_SERIAL TRUE)
endif()
# What is shipped: the pinned end states, and the rows of the ledger that the programs alone can show.
if(CMAKE_BUILD_TYPE STREQUAL Release)
  add_test(NAME end_states_test
    COMMAND ${CMAKE_SOURCE_DIR}/tools/check_end_states ${CMAKE_BINARY_DIR}/bin/trainyard)
  set_tests_properties(end_states_test PROPERTIES LABELS release TIMEOUT 600 COST 600 PROCESSORS 2)
  add_test(NAME features_test COMMAND ${CMAKE_SOURCE_DIR}/tools/check_features --quick)
  set_tests_properties(features_test PROPERTIES LABELS "release;long" TIMEOUT 1800 COST 1800 PROCESSORS 2)
endif()
