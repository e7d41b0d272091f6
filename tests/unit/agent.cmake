trainyard_test(worker_contract_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/worker_contract_test.cc
  DEPS common_contract)
trainyard_test(log_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/log_test.cc
  DEPS common_log common_io nlohmann_json::nlohmann_json)
trainyard_test(agent_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent/agent_options_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/devices_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/line_buffer_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/oom_watch_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/progress_page_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/rank_log_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/supervisor_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/supervisor_generation_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/agent/supervisor_verdict_test.cc
  DEPS agent_process)
trainyard_test(coordinator_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_bounds_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_facts_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_failures_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_join_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/coordinator_silence_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/earlier_agent_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/exit_log_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/common/fair_mutex_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/generation_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/coordinator/message_memory_test.cc
  DEPS agent_core)
# Under TSan Debian's uninstrumented gRPC gives false reports; the same contract is tested there
# over the in-memory transport (coordinator_test).
trainyard_test(grpc_transport_test TIER unit NOT_UNDER thread
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/coordinator/grpc_transport_test.cc
  DEPS control_coordinator_grpc)
trainyard_test(run_views_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/run/control_socket_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/foreign_program_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/limits_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/signals_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/snapshot_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/views_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/run/warning_filter_test.cc
  DEPS cli_run nlohmann_json::nlohmann_json)
trainyard_test(left_facts_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/run/left_facts_test.cc
  DEPS control_local_test_support cli_run)
# NVIDIA's management library without GPUs, and two that lack functions.
foreach(name fake bare old)
  add_library(trainyard-${name}-nvml SHARED ${CMAKE_CURRENT_LIST_DIR}/../support/fake_nvml.cc)
  target_compile_options(trainyard-${name}-nvml PRIVATE -fno-sanitize=all)
  target_link_options(trainyard-${name}-nvml PRIVATE -fno-sanitize=all)
endforeach()
target_compile_definitions(trainyard-bare-nvml PRIVATE TRAINYARD_WITHOUT_READINGS)
target_compile_definitions(trainyard-old-nvml PRIVATE TRAINYARD_WITHOUT_HANDLES)
trainyard_test(gpu_watch_test TIER unit MEMORY THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/agent/gpu_watch_test.cc
  DEPS agent_core test_paths)
add_dependencies(gpu_watch_test trainyard-fake-nvml trainyard-bare-nvml trainyard-old-nvml)
