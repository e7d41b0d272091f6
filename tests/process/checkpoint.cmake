# One generation as a process, for the tests that fail, freeze and kill it.
trainyard_binary(checkpoint_probe SOURCES ${CMAKE_CURRENT_LIST_DIR}/checkpoint/checkpoint_probe.cc
                 DEPS worker_checkpoint common_layout GTest::gtest)
set_target_properties(checkpoint_probe PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
foreach(name save_fault zombie_process)
  if(TRAINYARD_SANITIZE AND name STREQUAL "save_fault")
    # It fails every system call of a save in turn; a sanitizer's runtime makes calls of its own among them.
    continue()
  endif()
  trainyard_test(checkpoint_${name}_test TIER process WAITS TIMEOUT 600
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/checkpoint/${name}_test.cc
    DEPS worker_checkpoint common_layout process_test_support)
  add_dependencies(checkpoint_${name}_test checkpoint_probe)
endforeach()
