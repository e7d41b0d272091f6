trainyard_test(rank_counters_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/rank_counters_test.cc
  DEPS common_contract)
trainyard_test(exposition_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/metrics/exposition_test.cc
  DEPS common_metrics)
trainyard_library(http_test_support
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/../support/http_client.cc
  DEPS common_base)
trainyard_test(status_server_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/http/status_server_test.cc
  DEPS common_http http_test_support)
trainyard_test(stage_meter_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/rank/stage_meter_test.cc
  DEPS worker_rank)
# Reads docs/reference/metrics.md and runs promtool.
trainyard_test(metrics_reference_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/control/telemetry/metrics_reference_test.cc
  DEPS agent_core cli_run process_test_support)
add_dependencies(metrics_reference_test trainyard-fake-nvml)
trainyard_test(progress_figures_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/common/progress_figures_test.cc
  DEPS agent_process cli_report cli_run cli_top nlohmann_json::nlohmann_json)
trainyard_test(top_test TIER unit
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cli/top/live_state_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/top/render_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/top/scrape_test.cc
  DEPS cli_top nlohmann_json::nlohmann_json)
