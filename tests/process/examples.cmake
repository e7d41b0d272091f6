# The example jobs are valid ones, and can be planned.
if(TARGET trainyard)
  file(GLOB example_jobs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/manifests/examples/*.yaml)
  list(FILTER example_jobs EXCLUDE REGEX "/claim-and-filler[.]yaml$") # what kubectl takes before a job
  add_test(NAME examples_test COMMAND trainyard validate ${example_jobs})
  set_tests_properties(examples_test PROPERTIES LABELS process TIMEOUT 60)
  if(NOT TRAINYARD_SANITIZE)
    add_test(NAME examples_plan_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/examples_test.py ${CMAKE_SOURCE_DIR} $<TARGET_FILE:trainyard>)
    set_tests_properties(examples_plan_test PROPERTIES LABELS process TIMEOUT 300)
  endif()
endif()
