# lockstep_module(NAME base SOURCES a.cc … [DEPENDS other …] [LIBRARIES fmt::fmt …])
#
# One folder of src/ as one target, lockstep_<name>. Its headers are reached as "<name>/file.h", and only by
# targets that depend on it, directly or not: the include path of a target holds a link to each of these folders,
# so that an include against the direction drawn in CONTRIBUTING.md does not compile.
function(lockstep_module)
  cmake_parse_arguments(M "" "NAME" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  set(target lockstep_${M_NAME})
  set(include_dir ${PROJECT_BINARY_DIR}/module_include/${M_NAME})
  file(MAKE_DIRECTORY ${include_dir})
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${include_dir}/${M_NAME} SYMBOLIC)

  add_library(${target} STATIC ${M_SOURCES})
  target_include_directories(${target} PUBLIC ${include_dir} ${PROJECT_SOURCE_DIR}/include)
  list(TRANSFORM M_DEPENDS PREPEND lockstep_)
  target_link_libraries(${target} PUBLIC ${M_DEPENDS} ${M_LIBRARIES} PRIVATE lockstep_warnings)
endfunction()

# Warnings and sanitizers for every target of ours.
add_library(lockstep_warnings INTERFACE)
target_compile_options(lockstep_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough
  # Designated initialisers leave fields at their defaults on purpose.
  -Wno-missing-field-initializers
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
