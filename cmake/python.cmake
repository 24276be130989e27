# Finds what the Python package needs. Sets LOCKSTEP_PYTHON if all of it is there; otherwise prints what is missing.
#
# Python's torch must be the LibTorch that lockstep is linked to: two copies in one process would not know each
# other's tensors. Debian's python3-torch belongs to Debian's interpreter, which may not be the first one in PATH.
set(LOCKSTEP_PYTHON OFF)
if(NOT DEFINED Python3_EXECUTABLE AND EXISTS /usr/bin/python3)
  set(Python3_EXECUTABLE /usr/bin/python3)
endif()
find_package(Python3 QUIET COMPONENTS Interpreter Development.Module)
find_package(pybind11 QUIET CONFIG)
get_filename_component(torch_libraries "${TORCH_LIBRARY}" DIRECTORY)
find_library(TORCH_PYTHON_LIBRARY torch_python HINTS ${torch_libraries})

set(missing)
if(NOT Python3_Interpreter_FOUND OR NOT Python3_Development.Module_FOUND)
  list(APPEND missing "Python's headers (python3-dev)")
endif()
if(NOT pybind11_FOUND)
  list(APPEND missing "pybind11 (pybind11-dev)")
endif()
if(NOT TORCH_PYTHON_LIBRARY)
  list(APPEND missing "PyTorch for this LibTorch (python3-torch)")
elseif(Python3_Interpreter_FOUND AND NOT LOCKSTEP_PYTHON_TORCH MATCHES "^${Torch_VERSION}")
  # Importing torch takes a second, so the right answer is kept; a wrong one may change.
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import torch; print(torch.__version__)"
                  OUTPUT_VARIABLE version ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(LOCKSTEP_PYTHON_TORCH "${version}" CACHE INTERNAL "The version of Python's torch")
endif()
if(TORCH_PYTHON_LIBRARY AND NOT LOCKSTEP_PYTHON_TORCH)
  list(APPEND missing "PyTorch that ${Python3_EXECUTABLE} can import (python3-torch)")
elseif(TORCH_PYTHON_LIBRARY AND NOT LOCKSTEP_PYTHON_TORCH MATCHES "^${Torch_VERSION}")
  list(APPEND missing "PyTorch ${Torch_VERSION} in ${Python3_EXECUTABLE}, which has ${LOCKSTEP_PYTHON_TORCH}")
endif()

list(JOIN missing ", " missing)
set(LOCKSTEP_PYTHON_MISSING "${missing}" CACHE INTERNAL "What the Python package lacks; empty if it is built")
if(missing)
  message(STATUS "Without the Python package; missing: ${missing}")
  # The next build searches again if packages have been installed since.
  if(EXISTS /var/lib/dpkg/status)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS /var/lib/dpkg/status)
  endif()
else()
  set(LOCKSTEP_PYTHON ON)
  message(STATUS "Python package: Python ${Python3_VERSION}, PyTorch ${LOCKSTEP_PYTHON_TORCH}, "
                 "pybind11 ${pybind11_VERSION}")
endif()
