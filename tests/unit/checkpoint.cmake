set(here ${CMAKE_CURRENT_LIST_DIR}/worker/checkpoint)
trainyard_library(checkpoint_test_support SOURCES ${here}/memory_file_system.cc
                  DEPS worker_checkpoint common_layout)
foreach(name pure manifest shard round_trip damage foreign crash zombie hang bits memory)
  set(timing)
  if(name STREQUAL "hang") # saves that do not hang have its limit of milliseconds, too
    set(timing TIMING)
  endif()
  trainyard_test(checkpoint_${name}_test TIER unit THREADED ${timing} SOURCES ${here}/${name}_test.cc
                 DEPS checkpoint_test_support)
endforeach()
trainyard_test(safetensors_test TIER unit
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/safetensors/safetensors_test.cc
               DEPS worker_safetensors)
trainyard_test(hf_gpt2_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/hf/gpt2_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/worker/hf/bad_folder_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/worker/hf/decoder_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/worker/hf/run_facts_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/worker/hf/stored_type_test.cc
               DEPS worker_data worker_hf)
trainyard_test(ckpt_command_test TIER unit THREADED
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/cli/ckpt_command_test.cc
               DEPS cli_commands worker_checkpoint worker_hf nlohmann_json::nlohmann_json)
