# The judges that other tests rely on are judged themselves.
trainyard_test(audit_log_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/support/audit_log_test.cc ${CMAKE_CURRENT_LIST_DIR}/../support/audit_log.cc
  DEPS nlohmann_json::nlohmann_json)
