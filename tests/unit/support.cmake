# The judges that other tests rely on are judged themselves.
trainyard_test(audit_log_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/support/audit_log_test.cc ${CMAKE_CURRENT_LIST_DIR}/support/invariants_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/audit_log.cc ${CMAKE_CURRENT_LIST_DIR}/../support/invariants.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/ledger_check.cc
  DEPS common_text nlohmann_json::nlohmann_json)
trainyard_library(fault_proxy_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/answer_framing.cc ${CMAKE_CURRENT_LIST_DIR}/../support/fault.cc
          ${CMAKE_CURRENT_LIST_DIR}/../support/fault_proxy.cc ${CMAKE_CURRENT_LIST_DIR}/../support/tls_client.cc
  DEPS loopback_test_support fmt::fmt)
trainyard_test(fault_proxy_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/support/fault_proxy_test.cc
  DEPS fault_proxy_support GTest::gtest)
