# Build helpers: one function a kind of target, so that a folder's CMakeLists.txt only lists files.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

option(TRAINYARD_WERROR "Treat warnings as errors" ON)
set(TRAINYARD_SANITIZE "" CACHE STRING "address (with undefined), thread, or empty")
option(TRAINYARD_UNITY "Compile up to eight files of a library, twelve of a test program, as one" OFF)
option(TRAINYARD_FUZZ "Build the libFuzzer targets (clang only)" OFF)
option(TRAINYARD_COVERAGE "Instrument common/, control/, agent/, operator/ and worker/ for gcov" OFF)

find_program(TRAINYARD_CCACHE ccache)
if(TRAINYARD_CCACHE)
  # Relative to the build folder, commands of two checkouts are the same: a fresh clone compiles nothing twice.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TRAINYARD_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(TRAINYARD_MOLD mold)
if(TRAINYARD_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Ranks of two builds know each other by it (common/io/build_id.h).
add_link_options(-Wl,--build-id=sha1)

# Canonical numerics: contraction only where the source says fma (see docs/adr/0002-canonical-numerics.md).
add_compile_options(-ffp-contract=off -fno-omit-frame-pointer)
add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
# Designated initialisers name what differs from the defaults; the rest is meant to be left out.
add_compile_options(-Wno-missing-field-initializers)
# At -O3 gcc 12 sees overlapping copies in std::string's operator+ that are not there (gcc bug 105651).
add_compile_options($<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-restrict>)
if(TRAINYARD_WERROR)
  add_compile_options(-Werror)
endif()
if(TRAINYARD_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The sanitizers' own code hides initialisation from this warning; the other builds have it.
  add_compile_options(-Wno-maybe-uninitialized)
endif()
if(TRAINYARD_SANITIZE STREQUAL "address")
  # What AddressSanitizer finds as well costs as much to compile as all the rest: null pointers, objects that are too
  # small or of another type.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize=null,object-size,vptr -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
elseif(TRAINYARD_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -Wno-tsan)
  add_link_options(-fsanitize=thread)
endif()
if(TRAINYARD_COVERAGE)
  add_link_options(--coverage)
endif()
if(TRAINYARD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  add_link_options(-fsanitize=address,undefined)
endif()
# The tables of functions cannot be changed once a program runs (hardening_test reads the programs).
if(NOT TRAINYARD_SANITIZE AND NOT TRAINYARD_FUZZ)
  add_link_options(-Wl,-z,relro,-z,now)
endif()
# What is shipped ends with an error where it would write past a buffer.
set(TRAINYARD_CHECKED -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -D_GLIBCXX_ASSERTIONS)
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})

# Puts up to `size` of a target's files into one, for `sources` to name it in their stead. The same few headers are
# most of what a file compiles, above all instrumented. CMake's own way names the files by absolute paths, and no two
# checkouts would share what ccache holds.
function(trainyard_unite name size sources)
  if(NOT TRAINYARD_UNITY)
    return()
  endif()
  set(alone)
  set(batch)
  set(united)
  foreach(source ${${sources}})
    get_filename_component(path ${source} ABSOLUTE)
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR ${path} is_generated)
    file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})
    get_source_file_property(is_apart ${source} SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(NOT path MATCHES "\\.cc$" OR is_generated OR is_apart OR options OR definitions)
      list(APPEND alone ${source})
      continue()
    endif()
    list(APPEND batch ${path})
    list(LENGTH batch length)
    if(length EQUAL size)
      trainyard_write_united(${name} batch united)
    endif()
  endforeach()
  trainyard_write_united(${name} batch united)
  set(${sources} ${united} ${alone} PARENT_SCOPE)
endfunction()

# A class of one file may then use what stands in the unnamed namespace of another, which gcc takes for a mistake.
# Other warnings of united files stop no compiler; tools/build takes them for errors.
function(trainyard_forgive name)
  if(TRAINYARD_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage -Wno-error)
  endif()
endfunction()

# One file that includes those of `batch`, which is empty then, is added to `united`.
macro(trainyard_write_united name batch united)
  if(${batch})
    list(LENGTH ${united} index)
    set(file ${CMAKE_CURRENT_BINARY_DIR}/united/${name}_${index}.cc)
    list(JOIN ${batch} "\"\n#include \"" lines)
    file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${lines}\"\n" @ONLY)
    list(APPEND ${united} ${file})
    set(${batch})
  endif()
endmacro()

# How a release is compiled: checked, but for the kernels, whose loops are bounded by who launches them; and at -O1 where
# nothing computes, which takes two thirds of the time.
set(TRAINYARD_QUICK_ROOMS cli common/api control/(coordinator|local) worker/(job|matrix|trace))
function(trainyard_release_options name)
  if(NOT CMAKE_BUILD_TYPE STREQUAL Release)
    return()
  endif()
  file(RELATIVE_PATH room ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(JOIN "|" quick ${TRAINYARD_QUICK_ROOMS})
  if(room MATCHES "^(${quick})(/|$)")
    target_compile_options(${name} PRIVATE -O1)
  endif()
  if(NOT room MATCHES "^(kernels|tests|bench)(/|$)")
    target_compile_options(${name} PRIVATE ${TRAINYARD_CHECKED})
  endif()
endfunction()

# trainyard_library(NAME SOURCES a.cc ... [DEPS target ...] [OPTIONS flag ...] [APART a.cc ...])
# APART: files that have names of their own for what others name the same, so that they are never compiled as one with them.
function(trainyard_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;OPTIONS;APART" ${ARGN})
  if(ARG_SOURCES)
    # What has options of its own are the kernels, whose bits are not to hang on this.
    if(NOT ARG_OPTIONS)
      if(ARG_APART)
        set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
      trainyard_unite(${name} 8 ARG_SOURCES)
    endif()
    add_library(${name} STATIC ${ARG_SOURCES})
    target_link_libraries(${name} PUBLIC ${ARG_DEPS})
    # The engine computes: its tests would take longer at the preset's flags than it takes to compile.
    if(CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/(kernels|worker)(/|$)")
      if(TRAINYARD_SANITIZE)
        target_compile_options(${name} PRIVATE -O1)
      else()
        target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O2>)
      endif()
    endif()
    target_compile_options(${name} PRIVATE ${ARG_OPTIONS})
    trainyard_release_options(${name})
    trainyard_forgive(${name})
    # The rooms whose coverage is reported; counters in the kernels would only make them slow.
    if(TRAINYARD_COVERAGE AND CMAKE_CURRENT_SOURCE_DIR MATCHES "^${CMAKE_SOURCE_DIR}/(common|control|agent|operator|worker)(/|$)")
      target_compile_options(${name} PRIVATE --coverage -fprofile-update=atomic)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ARG_DEPS})
  endif()
endfunction()

# trainyard_binary(NAME SOURCES main.cc [DEPS target ...]): one of the programs; `trainyard_binaries` builds all.
function(trainyard_binary name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  trainyard_release_options(${name})
  # Of the archive that tools/dist makes. RPATH and not RUNPATH: libraries find each other there, too.
  set_target_properties(${name} PROPERTIES BUILD_RPATH "$ORIGIN/../lib/trainyard")
  target_link_options(${name} PRIVATE LINKER:--disable-new-dtags)
  set_property(GLOBAL APPEND PROPERTY TRAINYARD_BINARIES ${name})
endfunction()

# trainyard_bench(NAME SOURCES a_bench.cc ... [DEPS target ...]): a measurement; `benches` builds all, tools/run_bench
# runs them.
function(trainyard_bench name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  set_property(GLOBAL APPEND PROPERTY TRAINYARD_BENCHES ${name})
endfunction()

# trainyard_test(NAME TIER unit|numeric|comm|process|sim|apiserver|cluster|... SOURCES a_test.cc ... [DEPS target ...] [TIMEOUT s]
#                [SERIAL] [TIMING] [WAITS] [THREADED] [MEMORY] [SMOKE] [RELEASE] [NOT_UNDER thread|address])
# One CTest entry a binary, labelled with its tier; `tests_<tier>` builds a tier. SERIAL: needs the machine for
# itself. TIMING: its verdict depends on a bound of less than 30 s of real time within which what is well must move:
# label `timing`. Such tests run last, with nothing beside them. A condition that is only awaited gets at least 60 s
# instead and needs no label. WAITS: for others more than it computes, so that twice as many run at a time. THREADED:
# its process has more than one thread, so that ThreadSanitizer may find something: label `threads`. MEMORY: runs under
# AddressSanitizer in `make test-all`, label `memory`, as do the tiers unit and comm but for what is all values there:
# the control plane's parts and the house's rules. SMOKE: one of the few of its tier that run under AddressSanitizer in
# `make test-long`: label `smoke`. NOT_UNDER: under this sanitizer the test is reported as not run
# (say why beside the call).
function(trainyard_test name)
  cmake_parse_arguments(ARG "SERIAL;TIMING;WAITS;THREADED;MEMORY;SMOKE;RELEASE" "TIER;TIMEOUT;NOT_UNDER" "SOURCES;DEPS" ${ARGN})
  set(cost 0) # as measured the last time
  if(ARG_TIMEOUT)
    set(cost ${ARG_TIMEOUT}) # what may take long is begun first, also in a fresh checkout
  else()
    set(ARG_TIMEOUT 300)
  endif()
  # Of two places a core (tools/run_tests).
  set(places 2)
  if(ARG_WAITS)
    set(places 1)
  endif()
  if(TRAINYARD_SANITIZE)
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  set(compiled ${ARG_SOURCES})
  trainyard_unite(${name} 12 compiled)
  add_executable(${name} ${compiled})
  trainyard_forgive(${name})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} test_paths GTest::gmock GTest::gtest_main)
  # A test's own code runs once: it compiles a third faster unoptimised. Tests that compute take longer that way.
  set(level -O0)
  if("${ARG_SOURCES}" MATCHES "/(kernels|worker)/" OR (NOT TRAINYARD_SANITIZE AND ARG_TIER MATCHES "^(numeric|comm|sim)$"))
    set(level -O1)
  endif()
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:${level}>)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_${ARG_TIER} ${name})
  add_test(NAME ${name} COMMAND ${name})
  set(labels ${ARG_TIER})
  if(ARG_TIMING)
    list(APPEND labels timing)
  endif()
  if(ARG_THREADED)
    list(APPEND labels threads)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_threads ${name})
  endif()
  if(ARG_MEMORY OR (ARG_TIER MATCHES "^(unit|comm)$" AND NOT ARG_SOURCES MATCHES "/unit/(control|operator|house)/"))
    list(APPEND labels memory)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_memory ${name})
  endif()
  if(ARG_SMOKE)
    list(APPEND labels smoke)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_smoke ${name})
  endif()
  if(ARG_RELEASE)
    list(APPEND labels release)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_release ${name})
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} COST ${cost} PROCESSORS ${places})
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
  if(ARG_NOT_UNDER AND ARG_NOT_UNDER STREQUAL TRAINYARD_SANITIZE)
    set_tests_properties(${name} PROPERTIES DISABLED TRUE)
  endif()
endfunction()

# Call once, after every folder: the targets `trainyard_binaries`, `benches`, `tests_<tier>` and, where fuzzing is on, `fuzz_targets`.
function(trainyard_collect_targets)
  get_property(binaries GLOBAL PROPERTY TRAINYARD_BINARIES)
  add_custom_target(trainyard_binaries DEPENDS ${binaries})
  get_property(benches GLOBAL PROPERTY TRAINYARD_BENCHES)
  add_custom_target(benches DEPENDS ${benches})
  foreach(tier unit numeric comm process sim emulated race apiserver cluster fuzz threads memory smoke release)
    get_property(tests GLOBAL PROPERTY TRAINYARD_TESTS_${tier})
    add_custom_target(tests_${tier} DEPENDS ${tests})
  endforeach()
  get_property(fuzz_targets GLOBAL PROPERTY TRAINYARD_FUZZ_TARGETS)
  if(fuzz_targets)
    add_custom_target(fuzz_targets DEPENDS ${fuzz_targets})
  endif()
endfunction()

# trainyard_fuzz(NAME SOURCES a_fuzz.cc ... [DEPS target ...]): in the preset `fuzz` a libFuzzer target
# (`tools/run_fuzz` runs all), elsewhere a test that replays its seeds, tests/fuzz/corpus/NAME without _fuzz.
function(trainyard_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  string(REGEX REPLACE "_fuzz$" "" corpus ${name})
  if(TRAINYARD_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_FUZZ_TARGETS ${name})
  else()
    add_executable(${name} ${ARG_SOURCES} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    set_property(GLOBAL APPEND PROPERTY TRAINYARD_TESTS_fuzz ${name})
    add_test(NAME ${name} COMMAND ${name} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${corpus})
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 60)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
