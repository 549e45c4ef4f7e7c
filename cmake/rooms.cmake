# isola_room(NAME [DEPS target…] [LIBS library…] [TEST_DEPS target…])
#
# One room = one folder = one static library `isola_NAME` made of every .cc beside the CMakeLists.txt, and one test
# program `NAME_test` made of every x_test.cc there. main.cc is left out: whoever has one adds an executable for it.
# A room sees only the rooms in its DEPS, so that a wrong dependency does not link.
find_package(GTest REQUIRED)
include(GoogleTest)

# What only drives and compares: it is compiled more often than it is run, so the compiler need not think about it.
function(isola_quick_to_compile target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Debug>:-O0>)
endfunction()

function(isola_room name)
  cmake_parse_arguments(R "" "" "DEPS;LIBS;TEST_DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "(_test|main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  add_library(isola_${name} STATIC ${sources})
  target_link_libraries(isola_${name} PUBLIC ${R_DEPS} ${R_LIBS})
  if(tests AND NOT ISOLA_FUZZ)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE isola_${name} ${R_TEST_DEPS} GTest::gtest GTest::gtest_main)
    isola_quick_to_compile(${name}_test)
    add_test(NAME ${name}_test COMMAND ${name}_test)
  endif()
endfunction()
