trainyard_test(worker_contract_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/worker_contract_test.cc
  DEPS common_contract)
