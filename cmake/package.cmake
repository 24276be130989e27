# The installed package: find_package(lockstep), target lockstep::lockstep; or pkg-config lockstep.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(TARGETS lockstep EXPORT lockstepTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(LOCKSTEP_HAS_MPI)
  install(TARGETS lockstep_mpi_module LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_dir})
configure_package_config_file(cmake/lockstepConfig.cmake.in ${PROJECT_BINARY_DIR}/lockstepConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lockstepConfig.cmake ${PROJECT_BINARY_DIR}/lockstepConfigVersion.cmake
        DESTINATION ${package_dir})

# For builds without CMake: c++ $(pkg-config --cflags lockstep) app.cc $(pkg-config --libs lockstep). It names the LibTorch
# that lockstep was built with, which has no file of this kind.
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH to_prefix /${pc_dir} /)
string(REGEX REPLACE "/$" "" to_prefix "${to_prefix}")
list(TRANSFORM TORCH_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE torch_cflags)
list(JOIN torch_cflags " " torch_cflags)
string(STRIP "${torch_cflags} ${TORCH_CXX_FLAGS}" torch_cflags)
get_filename_component(torch_libdir "${TORCH_LIBRARY}" DIRECTORY)
configure_file(cmake/lockstep.pc.in ${PROJECT_BINARY_DIR}/lockstep.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lockstep.pc DESTINATION ${pc_dir})
