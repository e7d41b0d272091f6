set(kernels_numeric ${CMAKE_CURRENT_LIST_DIR}/kernels)
trainyard_test(kernels_reference_gradient_test TIER numeric
               SOURCES ${kernels_numeric}/reference_gradient_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_gemm_test TIER numeric SOURCES ${kernels_numeric}/gemm_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_canonical_chain_test TIER numeric
               SOURCES ${kernels_numeric}/canonical_chain_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_attention_test TIER numeric SOURCES ${kernels_numeric}/attention_test.cc ${kernels_numeric}/rows_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_ops_test TIER numeric SOURCES ${kernels_numeric}/ops_test.cc ${kernels_numeric}/decoder_ops_test.cc
               ${kernels_numeric}/optimizer_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_equal_bits_test TIER numeric SOURCES ${kernels_numeric}/equal_bits_test.cc ${kernels_numeric}/equal_bits_rows_test.cc
               DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_tensor_parts_test TIER numeric
               SOURCES ${kernels_numeric}/tensor_parts_test.cc DEPS kernels_cpu kernels_reference)
trainyard_test(kernels_exact_sum_test TIER numeric SOURCES ${kernels_numeric}/exact_sum_test.cc
               DEPS kernels_cpu kernels_reference)
