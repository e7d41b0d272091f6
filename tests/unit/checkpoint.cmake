set(here ${CMAKE_CURRENT_LIST_DIR}/worker/checkpoint)
trainyard_test(checkpoint_round_trip_test TIER unit SOURCES ${here}/round_trip_test.cc
               DEPS worker_checkpoint)
trainyard_test(safetensors_test TIER unit
               SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/safetensors/safetensors_test.cc
               DEPS worker_safetensors)
trainyard_test(hf_gpt2_test TIER unit SOURCES ${CMAKE_CURRENT_LIST_DIR}/worker/hf/gpt2_test.cc
               DEPS worker_hf)
