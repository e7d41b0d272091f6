# The chart: what it renders (the plane of all tests), what becomes of a release (a plane of its own).
if(TARGET trainyard-operator)
  trainyard_library(chart_test_support
    SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/helm.cc
    DEPS operator_test_support)
  set(here ${CMAKE_CURRENT_LIST_DIR}/chart)
  trainyard_apiserver_test(chart_render_test TIMEOUT 900 SOURCES ${here}/render_test.cc DEPS chart_test_support)
  trainyard_test(chart_install_test TIER apiserver WAITS TIMEOUT 600
    SOURCES ${here}/install_test.cc
    DEPS chart_test_support)
  # It mostly waits for installations, upgrades and rollbacks; what the chart renders is tested above.
  set_tests_properties(chart_install_test PROPERTIES RESOURCE_LOCK second_plane LABELS "apiserver;explore")
  add_dependencies(chart_render_test trainyard-operator)
  add_dependencies(chart_install_test trainyard-operator)
endif()
