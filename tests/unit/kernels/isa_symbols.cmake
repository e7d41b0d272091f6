# A kernel object compiled for one instruction set must define no symbol that the linker may merge
# with code for another: every weak definition must carry its own namespace.
# cmake -DNM=nm -DOBJECTS="a.o b.o" -DNAMESPACE=isa_avx2 -P isa_symbols.cmake
separate_arguments(objects UNIX_COMMAND "${OBJECTS}")
list(LENGTH objects count)
if(count EQUAL 0)
  message(FATAL_ERROR "no objects were given")
endif()
foreach(object ${objects})
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols
                  RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${NM} ${object} failed")
  endif()
  string(REGEX MATCHALL "[0-9a-f]+ [WVuwv] [^\n]+" weak "${symbols}")
  foreach(symbol ${weak})
    if(NOT symbol MATCHES "${NAMESPACE}" AND NOT symbol MATCHES "DW\\.ref\\.__gxx_personality_v0")
      message(FATAL_ERROR "${object} defines the mergeable symbol ${symbol}")
    endif()
  endforeach()
endforeach()
