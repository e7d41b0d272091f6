# The container images of this build's programs, twice. Sanitizers' programs go into no image.
if(NOT TRAINYARD_SANITIZE)
  add_test(NAME images_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/images/images_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(images_test PROPERTIES LABELS process TIMEOUT 900)
  if(TARGET trainyard-worker-cuda)
    set_tests_properties(images_test PROPERTIES ENVIRONMENT TRAINYARD_WORKER_FOR_GPUS=$<TARGET_FILE:trainyard-worker-cuda>)
  endif()
  add_test(NAME dist_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/images/dist_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(dist_test PROPERTIES LABELS process TIMEOUT 900)
endif()
# What the node image of tools/kind is called, which decides whether it is made anew.
add_test(NAME node_image_name_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/images/node_image_name_test.py)
set_tests_properties(node_image_name_test PROPERTIES LABELS process TIMEOUT 300)
# The programs are hardened. Of a release, those that its other tests build.
if(NOT TRAINYARD_SANITIZE)
  set(programs trainyard trainyard-agent trainyard-worker)
  set(tier release)
  set(kind checked)
  if(NOT CMAKE_BUILD_TYPE STREQUAL Release)
    list(APPEND programs trainyard-operator)
    set(tier process)
    set(kind linked)
  endif()
  add_test(NAME hardening_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/images/hardening_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${kind} ${programs})
  set_tests_properties(hardening_test PROPERTIES LABELS ${tier} TIMEOUT 300)
endif()
