set(here ${CMAKE_CURRENT_LIST_DIR}/common)
trainyard_test(text_test TIER unit
  SOURCES ${here}/text/document_test.cc ${here}/text/hostile_test.cc ${here}/text/quantity_test.cc
          ${here}/text/readable_test.cc
          ${here}/text/writing_test.cc ${here}/text/yaml_writer_test.cc
  DEPS common_text)
trainyard_test(api_test TIER unit
  SOURCES ${here}/api/bad_engine_test.cc ${here}/api/bad_job_test.cc ${here}/api/bad_manifest.cc ${here}/api/crd_test.cc
          ${here}/api/decode_test.cc ${here}/api/earlier_schema_test.cc ${here}/api/enum_names_test.cc ${here}/api/fields_test.cc ${here}/api/later_words_test.cc
          ${here}/api/job_size_test.cc ${here}/api/numerics_test.cc ${here}/api/planned_test.cc ${here}/api/pod_places_test.cc
          ${here}/api/pod_template_test.cc ${here}/api/round_trip_test.cc
  DEPS common_api)
trainyard_test(cli_test TIER unit THREADED
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/cli/convert_command_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli/help_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/data_order_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli/foreseen_test.cc ${CMAKE_CURRENT_LIST_DIR}/cli/init_command_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/plan_command_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/terminal_text_test.cc
          ${CMAKE_CURRENT_LIST_DIR}/cli/validate_command_test.cc
  DEPS cli_commands)
