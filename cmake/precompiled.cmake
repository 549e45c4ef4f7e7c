# isola_precompile(TARGET…): the headers of precompiled.h come compiled into these targets. Only with GCC: the fuzz preset, which
# clang builds, finds sources that do not name what they need.
#
# A precompiled header serves only those who are compiled exactly like it, so there is one for libraries (-fPIC) and one for
# programs (-fPIE). The programs are tests, and are compiled as tests are (isola_quick_to_compile in rooms.cmake).
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  function(isola_precompile)
  endfunction()
  return()
endif()

find_package(Boost 1.81 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Threads REQUIRED)
file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "")
foreach(kind library program)
  add_library(isola_precompiled_${kind} OBJECT ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(isola_precompiled_${kind} PRIVATE isola_fmt Boost::headers nlohmann_json::nlohmann_json Threads::Threads)
  target_precompile_headers(isola_precompiled_${kind} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/precompiled.h)
  target_compile_options(isola_precompiled_${kind} PRIVATE -fpch-preprocess)  # ccache needs it
endforeach()
set_target_properties(isola_precompiled_program PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(isola_precompiled_program PRIVATE -fPIE)
find_package(GTest REQUIRED)
target_link_libraries(isola_precompiled_program PRIVATE GTest::gtest)
target_precompile_headers(isola_precompiled_program PRIVATE <gtest/gtest.h>)
isola_quick_to_compile(isola_precompiled_program)

function(isola_precompile)
  foreach(target ${ARGN})
    if(NOT TARGET ${target})
      continue()
    endif()
    get_target_property(type ${target} TYPE)
    set(kind library)
    if(type STREQUAL "EXECUTABLE")
      set(kind program)
    endif()
    target_precompile_headers(${target} REUSE_FROM isola_precompiled_${kind})
    # GCC forgets that these are other people's headers, and warns of what it inlines from them: false alarms.
    target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-stringop-overflow -Wno-stringop-overread -Wno-array-bounds)
  endforeach()
endfunction()
