trainyard_test(parity_test TIER numeric SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/parity_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/engine/decoder_parity_test.cc
  DEPS tests_comm_world worker_matrix worker_hf nlohmann_json::nlohmann_json)
trainyard_test(ignored_targets_test TIER numeric SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/ignored_targets_test.cc
               ${CMAKE_CURRENT_LIST_DIR}/engine/ignored_targets_parity_test.cc
  DEPS tests_comm_world worker_matrix worker_hf kernels_reference nlohmann_json::nlohmann_json)
trainyard_test(equality_matrix_test TIER numeric
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/equality_matrix_test.cc DEPS worker_matrix TIMEOUT 900 SERIAL)
trainyard_test(tensor_parallel_test TIER numeric
  SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/context_parallel_test.cc ${CMAKE_CURRENT_LIST_DIR}/engine/tensor_parallel_test.cc DEPS worker_matrix SERIAL)
trainyard_test(end_state_test TIER numeric MEMORY SOURCES ${CMAKE_CURRENT_LIST_DIR}/engine/end_state_test.cc
  DEPS worker_matrix nlohmann_json::nlohmann_json)
