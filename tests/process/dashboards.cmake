# Programs of Python: pictures (the chart's dashboards for Grafana, the renderer that draws them without it, those of
# commands) and a newcomer's walk.
if(TRAINYARD_SANITIZE)
  return() # programs of Python; what they start is tested by others there
endif()
foreach(name dashboards dashboard_render)
  add_test(NAME ${name}_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/dashboards/${name}_test.py)
  set_tests_properties(${name}_test PROPERTIES LABELS process TIMEOUT 300)
endforeach()
if(TARGET trainyard AND TARGET trainyard-worker)
  add_test(NAME dashboard_run_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/dashboards/dashboard_run_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(dashboard_run_test PROPERTIES LABELS process TIMEOUT 600)
  add_test(NAME pictures_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/pictures/pictures_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(pictures_test PROPERTIES LABELS process TIMEOUT 300)
  # Ten minutes of training by a clock.
  add_test(NAME newcomer_test
    COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/newcomer/newcomer_test.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
  set_tests_properties(newcomer_test PROPERTIES LABELS "process;long" TIMEOUT 1200 RUN_SERIAL TRUE)
endif()
