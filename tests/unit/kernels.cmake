set(kernels_unit ${CMAKE_CURRENT_LIST_DIR}/kernels)
trainyard_test(kernels_simd_test TIER unit SOURCES ${kernels_unit}/simd_test.cc DEPS kernels_cpu)
trainyard_test(kernels_math_test TIER unit SOURCES ${kernels_unit}/math_test.cc DEPS kernels_cpu)
trainyard_test(kernels_thread_pool_test TIER unit THREADED SOURCES ${kernels_unit}/thread_pool_test.cc
               DEPS kernels_cpu)
trainyard_test(kernels_cpu_kernel_set_test TIER unit
               SOURCES ${kernels_unit}/cpu_kernel_set_test.cc DEPS kernels_cpu)

# Instrumented objects define the sanitizers' and gcov's own weak symbols.
if(NOT TRAINYARD_SANITIZE AND NOT TRAINYARD_COVERAGE)
  foreach(isa generic avx2 avx512 avx512_bf16 amx)
    add_test(NAME kernels_${isa}_symbols_test
             COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} -DNAMESPACE=isa_${isa}
                     "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:kernels_cpu_${isa}>, >"
                     -P ${kernels_unit}/isa_symbols.cmake)
    set_tests_properties(kernels_${isa}_symbols_test PROPERTIES LABELS unit TIMEOUT 60)
  endforeach()
  # What a processor that has this set and none of the faster ones cannot run.
  set(foreign_generic "%[yz]mm")
  set(foreign_avx2 "%zmm|%k[0-7]")
  set(foreign_avx512 "vdpbf16|ps2bf16")
  set(foreign_avx512_bf16 "%tmm")
  foreach(isa generic avx2 avx512 avx512_bf16)
    add_test(NAME kernels_${isa}_instructions_test
             COMMAND ${CMAKE_COMMAND} -DOBJDUMP=${CMAKE_OBJDUMP} "-DFOREIGN=${foreign_${isa}}"
                     "-DOBJECTS=$<JOIN:$<TARGET_OBJECTS:kernels_cpu_${isa}>, >"
                     -P ${kernels_unit}/isa_instructions.cmake)
    set_tests_properties(kernels_${isa}_instructions_test PROPERTIES LABELS unit TIMEOUT 60)
  endforeach()
endif()
trainyard_emulated_test(kernels_simt SOURCES ${kernels_unit}/simt_memory_test.cc ${kernels_unit}/simt_test.cc
                        KERNELS ${kernels_unit}/simt_kernels.cc)

add_test(NAME gpu_check_test COMMAND python3 ${kernels_unit}/gpu_check_test.py ${CMAKE_SOURCE_DIR}/tools/gpu_check)
set_tests_properties(gpu_check_test PROPERTIES LABELS unit TIMEOUT 120)
add_test(NAME gpu_budget_test COMMAND python3 ${kernels_unit}/gpu_budget_test.py ${CMAKE_SOURCE_DIR})
set_tests_properties(gpu_budget_test PROPERTIES LABELS unit TIMEOUT 60)
