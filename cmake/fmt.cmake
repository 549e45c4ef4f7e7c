# isola_fmt: the formatting library, compiled once. Distributions have it as a shared library, which the static guest cannot
# link, and as headers only, which puts its whole implementation into each of our objects: a third of the build's time.
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(isola_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cc)
  target_include_directories(isola_fmt PUBLIC $<TARGET_PROPERTY:fmt::fmt,INTERFACE_INCLUDE_DIRECTORIES>)
  target_compile_options(isola_fmt PRIVATE -fno-sanitize=all)  # it is linked into the static programs, too
else()
  add_library(isola_fmt INTERFACE)  # what has to be instantiated differs from version to version
  target_link_libraries(isola_fmt INTERFACE fmt::fmt-header-only)
endif()
