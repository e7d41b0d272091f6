set(cuda_numeric ${CMAKE_CURRENT_LIST_DIR}/cuda)
trainyard_emulated_test(kernels_cuda LIBRARY kernels_cuda
                        SOURCES ${cuda_numeric}/attention_test.cc ${cuda_numeric}/classifier_test.cc
                        ${cuda_numeric}/elementwise_test.cc ${cuda_numeric}/gemm_test.cc ${cuda_numeric}/norm_test.cc
                        ${cuda_numeric}/optimizer_test.cc ${CMAKE_CURRENT_LIST_DIR}/../support/fake_cublaslt.cc
                        DEPS kernels_reference kernels_cpu)
