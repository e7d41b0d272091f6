# A kernel object compiled for one instruction set must hold no instruction that only a later set has.
# cmake -DOBJDUMP=objdump -DOBJECTS="a.o b.o" -DFOREIGN=regular-expression -P isa_instructions.cmake
separate_arguments(objects UNIX_COMMAND "${OBJECTS}")
list(LENGTH objects count)
if(count EQUAL 0)
  message(FATAL_ERROR "no objects were given")
endif()
foreach(object ${objects})
  execute_process(COMMAND ${OBJDUMP} -d --no-show-raw-insn ${object}
                  COMMAND grep -E -m 1 "\t.*(${FOREIGN})"
                  OUTPUT_VARIABLE found RESULTS_VARIABLE results)
  if(found)
    message(FATAL_ERROR "${object} holds an instruction of another set: ${found}")
  endif()
  list(GET results 0 result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${OBJDUMP} -d ${object} failed")
  endif()
endforeach()
