# Warnings, sanitizers and the compiler cache: what every target of the project is built with.
find_program(WSTORE_CCACHE ccache)
if(WSTORE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${WSTORE_CCACHE})
endif()
if(WSTORE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${WSTORE_CCACHE})
endif()

add_library(wstore_build_options INTERFACE)
# nvcc has other options, and warns by itself.
target_compile_options(wstore_build_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wnon-virtual-dtor;-Wimplicit-fallthrough>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Wrong about std::string's operator+ in optimised builds (GCC bug 105651).
  target_compile_options(wstore_build_options INTERFACE
                         $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(WSTORE_WERROR)
  target_compile_options(wstore_build_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

# What tests are built with. Under AddressSanitizer only the code under test is instrumented: what
# it does to the tests' buffers is still seen, and the tests compile several times faster. Under
# ThreadSanitizer everything must be.
add_library(wstore_test_options INTERFACE)
get_target_property(wstore_warnings wstore_build_options INTERFACE_COMPILE_OPTIONS)
if(WSTORE_SANITIZE MATCHES "address")
  target_compile_options(wstore_test_options INTERFACE ${wstore_warnings} -O0)
  target_link_options(wstore_test_options INTERFACE -fsanitize=${WSTORE_SANITIZE})
else()
  target_link_libraries(wstore_test_options INTERFACE wstore_build_options)
endif()

if(WSTORE_SANITIZE)
  string(REPLACE "," "$<COMMA>" wstore_sanitize "${WSTORE_SANITIZE}")
  target_compile_options(wstore_build_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${wstore_sanitize};-fno-omit-frame-pointer>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  target_link_options(wstore_build_options INTERFACE -fsanitize=${WSTORE_SANITIZE})
endif()

# GCC 12's ThreadSanitizer stops at once under the address randomization of newer kernels, so
# programs are run without it where that is allowed.
if(WSTORE_SANITIZE STREQUAL "thread" AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  execute_process(COMMAND setarch --addr-no-randomize true RESULT_VARIABLE result ERROR_QUIET)
  if(result EQUAL 0)
    set(CMAKE_CROSSCOMPILING_EMULATOR setarch --addr-no-randomize)
  endif()
endif()

if(WSTORE_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "WSTORE_BUILD_FUZZERS needs clang; the preset 'fuzz' chooses it")
  endif()
  # The libraries report what they cover; only the fuzz targets bring the main function.
  target_compile_options(wstore_build_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
