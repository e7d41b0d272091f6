# The example jobs are valid ones.
if(TARGET trainyard)
  file(GLOB example_jobs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/manifests/examples/*.yaml)
  list(FILTER example_jobs EXCLUDE REGEX "/claim-and-filler[.]yaml$") # what kubectl takes before a job
  add_test(NAME examples_test COMMAND trainyard validate ${example_jobs})
  set_tests_properties(examples_test PROPERTIES LABELS process TIMEOUT 60)
endif()
