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
