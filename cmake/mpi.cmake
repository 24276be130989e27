# Finds the MPI whose module is built, liblockstep_mpi.so (src/mpi). Sets LOCKSTEP_HAS_MPI.
set(LOCKSTEP_MPI AUTO CACHE STRING "Build the module for MPI between machines: AUTO (where MPI is installed), ON or OFF")
set_property(CACHE LOCKSTEP_MPI PROPERTY STRINGS AUTO ON OFF)

set(LOCKSTEP_HAS_MPI OFF)
if(LOCKSTEP_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
  set(LOCKSTEP_HAS_MPI ${MPI_CXX_FOUND})
  if(MPI_CXX_FOUND)
    message(STATUS "MPI ${MPI_CXX_VERSION} from ${MPI_CXX_HEADER_DIR}")
  elseif(LOCKSTEP_MPI STREQUAL AUTO)
    message(STATUS "Without MPI between machines; missing: MPI's compiler wrappers (libopenmpi-dev)")
    # The next build searches again if packages have been installed since.
    if(EXISTS /var/lib/dpkg/status)
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS /var/lib/dpkg/status)
    endif()
  else()
    message(FATAL_ERROR "LOCKSTEP_MPI is ON, but MPI was not found. On Debian: apt-get install libopenmpi-dev")
  endif()
endif()

# Where the module is in the build tree. Programs find it there, or next to liblockstep.so, by their RUNPATH.
set(LOCKSTEP_MODULE_DIR ${PROJECT_BINARY_DIR}/src)
set(CMAKE_BUILD_RPATH ${LOCKSTEP_MODULE_DIR})
