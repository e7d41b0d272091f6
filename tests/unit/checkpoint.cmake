set(here ${CMAKE_CURRENT_LIST_DIR}/worker/checkpoint)
trainyard_test(checkpoint_round_trip_test TIER unit SOURCES ${here}/round_trip_test.cc
               DEPS worker_checkpoint)
