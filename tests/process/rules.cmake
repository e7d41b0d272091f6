# The chart's rules for Prometheus.
add_test(NAME rules_test COMMAND python3 -B ${CMAKE_CURRENT_LIST_DIR}/rules/rules_test.py)
set_tests_properties(rules_test PROPERTIES LABELS process TIMEOUT 300)
