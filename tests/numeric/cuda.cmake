set(cuda_numeric ${CMAKE_CURRENT_LIST_DIR}/cuda)
set(cuda_kernels ${CMAKE_CURRENT_LIST_DIR}/../unit/kernels/simt_kernels.cc)
set(cuda_tests ${cuda_numeric}/attention_library_test.cc ${cuda_numeric}/attention_test.cc
               ${cuda_numeric}/classifier_test.cc ${cuda_numeric}/elementwise_test.cc ${cuda_numeric}/norm_test.cc
               ${cuda_numeric}/optimizer_test.cc ${cuda_numeric}/semantics_test.cc)
trainyard_emulated_test(kernels_cuda LIBRARY kernels_cuda KERNELS ${cuda_kernels}
                        SOURCES ${cuda_tests} ${cuda_numeric}/gemm_test.cc ${cuda_numeric}/gpt2_step_test.cc
                        ${CMAKE_CURRENT_LIST_DIR}/../gpu/gpt2_step.cc ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cublaslt.cc
                        DEPS kernels_reference kernels_cpu)
trainyard_gpu_program(kernels_cuda SOURCES ${cuda_tests} KERNELS ${cuda_kernels}
                      DEPS kernels_reference kernels_cpu GTest::gmock GTest::gtest_main)
set(cuda_engine ${CMAKE_CURRENT_LIST_DIR}/cuda_engine)
trainyard_emulated_test(cuda_engine LIBRARY worker_device_cuda
                        SOURCES ${cuda_engine}/call_faults.cc ${cuda_engine}/call_faults_test.cc ${cuda_engine}/cuda_attention_test.cc
                                ${cuda_engine}/cuda_engine_test.cc ${cuda_engine}/cuda_fast_test.cc ${cuda_engine}/cuda_fault_test.cc ${cuda_engine}/cuda_graph_test.cc
                                ${cuda_engine}/cuda_inference_test.cc
                                ${cuda_engine}/cuda_streams_test.cc ${cuda_engine}/cuda_trace_test.cc
                                ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cublaslt.cc
                        DEPS cli_commands worker_data worker_device worker_engine worker_job worker_matrix worker_rank worker_sample worker_checkpoint tests_comm_world checkpoint_test_support)
trainyard_emulated_test(cuda_ranks LIBRARY worker_device_cuda
                        SOURCES ${cuda_engine}/call_faults.cc ${cuda_engine}/cuda_ranks_test.cc ${cuda_engine}/cuda_tensor_test.cc ${cuda_engine}/hung_gpu_test.cc ${cuda_engine}/ranks_call_faults_test.cc
                                ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cublaslt.cc
                        DEPS worker_comm worker_device worker_engine worker_job worker_matrix worker_rank worker_checkpoint agent_process tests_comm_world checkpoint_test_support)
trainyard_emulated_test(cuda_nccl LIBRARY worker_device_cuda
                        SOURCES ${cuda_engine}/call_faults.cc ${cuda_engine}/cuda_nccl_test.cc
                                ${cuda_engine}/nccl_call_faults_test.cc ${cuda_engine}/nccl_transport_test.cc
                                ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cublaslt.cc ${CMAKE_CURRENT_LIST_DIR}/../support/fake_nccl.cc
                                ${CMAKE_CURRENT_LIST_DIR}/../support/fake_nccl_operations.cc
                        DEPS worker_comm_nccl worker_comm worker_device worker_engine worker_job worker_matrix tests_comm_world)
add_library(nccl_names SHARED ${CMAKE_CURRENT_LIST_DIR}/../support/nccl_names.cc)
set_target_properties(nccl_names PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
# In race mode a step of the engine takes ten times as long: of the gate are its kernels alone, kernels_cuda_race_test.
foreach(test cuda_engine_race_test cuda_ranks_race_test cuda_nccl_race_test)
  if(TARGET ${test})
    set_property(TEST ${test} APPEND PROPERTY LABELS explore)
  endif()
endforeach()
foreach(test cuda_nccl_emulated_test cuda_nccl_race_test)
  if(TARGET ${test})
    add_dependencies(${test} nccl_names)
    set_tests_properties(${test} PROPERTIES PROCESSORS 1) # it mostly waits for what hangs
  endif()
endforeach()
