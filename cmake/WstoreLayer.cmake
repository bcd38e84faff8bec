# wstore_add_layer(NAME SOURCES ... [PUBLIC ...] [PRIVATE ...])
#
# One library target per layer, wstore_NAME with the alias wstore::NAME. Public headers are in the
# layer's include/ folder (#include "wstore/store.h"); private ones are included by their path from
# the top of the tree (#include "journal/witness.h"). A layer sees only what it links.
function(wstore_add_layer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(wstore_${name} STATIC ${ARG_SOURCES})
  add_library(wstore::${name} ALIAS wstore_${name})
  if(IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/include)
    target_include_directories(wstore_${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR}/include)
  endif()
  target_include_directories(wstore_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(wstore_${name} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE}
                                       $<BUILD_INTERFACE:wstore_build_options>)
endfunction()

# wstore_cuda_sources(NAME): lets a layer have .cu files. For other layers it does nothing.
function(wstore_cuda_sources name)
  if(WSTORE_HAS_CUDA)
    # CMake 3.25 does not know that nvcc has C++20.
    set_target_properties(wstore_${name} PROPERTIES CUDA_STANDARD_REQUIRED OFF)
    target_compile_options(wstore_${name} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr;-diag-suppress=20012>")
  endif()
endfunction()
