# gRPC, which is not instrumented, gives false reports under the thread sanitizer.
trainyard_test(training_test TIER process RELEASE TIMEOUT 1200 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/training_test.cc
  DEPS process_test_support ledger_test_support GTest::gmock)
add_dependencies(training_test trainyard trainyard-agent trainyard-worker)
# gRPC, as for training_test.
trainyard_test(divergence_test TIER process WAITS TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/divergence_test.cc
  DEPS run_test_support)
add_dependencies(divergence_test trainyard trainyard-agent trainyard-worker trainyard-fake-rank)
# As above.
trainyard_test(hang_test TIER process TIMING TIMEOUT 1200 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/hang/hang_test.cc
  DEPS run_test_support)
add_dependencies(hang_test trainyard trainyard-agent trainyard-worker gpu_worker_emulated)
# As above.
trainyard_test(inputs_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/inputs_test.cc
  DEPS run_test_support)
add_dependencies(inputs_test trainyard trainyard-agent trainyard-worker trainyard-fake-rank)
# As above.
trainyard_test(further_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/further_test.cc
  DEPS run_test_support)
add_dependencies(further_test trainyard trainyard-agent trainyard-worker)
# As above.
trainyard_test(lone_rank_test TIER process MEMORY TIMEOUT 300 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/lone_rank_test.cc
  DEPS worker_data worker_hf process_test_support GTest::gmock nlohmann_json::nlohmann_json)
add_dependencies(lone_rank_test trainyard trainyard-agent trainyard-worker)
# As above.
trainyard_test(evaluation_stop_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/evaluation_stop_test.cc
  DEPS run_test_support)
add_dependencies(evaluation_stop_test trainyard trainyard-agent trainyard-worker)
trainyard_test(asked_to_end_test TIER process TIMEOUT 600 NOT_UNDER thread address
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/asked_to_end_test.cc
  DEPS run_test_support)
add_dependencies(asked_to_end_test trainyard trainyard-agent trainyard-worker)
# Sanitizers take memory of their own.
trainyard_test(pipeline_trace_test TIER process TIMEOUT 600 NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/pipeline_trace_test.cc
  DEPS run_test_support)
add_dependencies(pipeline_trace_test trainyard trainyard-agent trainyard-worker trainyard-fake-rank)
trainyard_test(memory_plan_test TIER process TIMEOUT 600 NOT_UNDER address
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/memory_plan_test.cc
  DEPS run_test_support)
add_dependencies(memory_plan_test trainyard trainyard-worker)
trainyard_test(gpu_worker_test TIER process TIMEOUT 600 NOT_UNDER thread address
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/train/gpu_worker_test.cc
  DEPS run_test_support)
add_dependencies(gpu_worker_test trainyard trainyard-agent gpu_worker_emulated)
