# Kernels by nvcc: for each file of sources.txt a fat binary, with code for every wanted architecture, from which the driver takes
# what fits. `archive` becomes empty where none are wanted or can be made.
#
# SATCHEL_CUDA_LOWERED: older compute capabilities that this machine's GPU can pass for (SATCHEL_CUDA_CAPABILITY of vendor.c), as a
# list such as 75;80: kernels that are compiled for them, as machine code of SATCHEL_CUDA_LOWERED_TO. Usually none.
find_file(SATCHEL_CUDA_DRIVER NAMES libcuda.so.1 libcuda.so.1.1 nvcuda.dll PATHS /usr/lib/wsl/lib /usr/local/nvidia/lib64
          PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} PATHS /usr /lib64 /usr/lib64)
set(present OFF)
if(SATCHEL_CUDA_DRIVER OR EXISTS /proc/driver/nvidia/version)
  set(present ON)
endif()
satchel_wanted(CUDA ${present} wanted)
if(NOT wanted)
  set(archive)
  return()
endif()
find_program(SATCHEL_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT SATCHEL_NVCC)
  message(NOTICE "no nvcc: the CUDA backend is left out (packaging/gpu_images.py makes its kernels without one)")
  set(archive)
  return()
endif()
set(SATCHEL_CUDA_ARCHITECTURES "" CACHE STRING "compute capabilities that the CUDA kernels are built for: native, all, none, or a list")
set(architectures ${SATCHEL_CUDA_ARCHITECTURES})
if(NOT architectures)
  set(architectures all)
  if(SKBUILD_STATE STREQUAL "editable")
    set(architectures native)
  endif()
endif()
set(ptx ON) # for newer GPUs
if(architectures STREQUAL "native")
  set(ptx OFF)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE found ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${found}")
  list(REMOVE_DUPLICATES found)
  set(architectures all)
  if(found)
    string(REPLACE "." "" architectures "${found}")
    list(TRANSFORM architectures REPLACE "^90$" "90a") # with architecture-specific instructions
  endif()
endif()
if(architectures STREQUAL "none") # but those of SATCHEL_CUDA_LOWERED
  set(architectures)
endif()
if(architectures STREQUAL "all")
  set(architectures 80 86 89 90a)
endif()
message(STATUS "CUDA kernels for compute capability ${architectures}")
# Fat binaries of CUDA 12 load with its first driver, those of CUDA 13 with that of 13.
execute_process(COMMAND ${SATCHEL_NVCC} --version OUTPUT_VARIABLE driver)
string(REGEX REPLACE ".*release ([0-9]+)\\..*" "\\1000" driver "${driver}")

set(SATCHEL_CUDA_LOWERED "" CACHE STRING "older compute capabilities that a GPU of this machine can pass for, such as 80")
set(SATCHEL_CUDA_LOWERED_TO "90" CACHE STRING "the compute capability of that GPU")

set(fatbins)
set(packed)
# Compiles ${name}.cu to the fat binary `out`, for the targets (options of nvcc), and packs it; names: what it is for.
macro(satchel_fatbin out names)
  set(flags -O3 -std=c++17 --threads=2 -Werror all-warnings ${words} ${ARGN} -I${CMAKE_CURRENT_SOURCE_DIR}/../kernels
      -I${CMAKE_CURRENT_SOURCE_DIR}/../include -I${CMAKE_CURRENT_SOURCE_DIR}/../quant -I${SATCHEL_GENERATED}
      -MD -MF ${out}.d -MT ${out} ${CMAKE_CURRENT_SOURCE_DIR}/${name}.cu)
  if(SATCHEL_CCACHE AND CMAKE_OBJCOPY AND NOT WIN32)
    # ccache keeps objects only, and takes -fatbin for linking. The object holds the same fat binary.
    set(compile ${SATCHEL_CCACHE} ${SATCHEL_NVCC} -c ${flags} -o ${out}.o
        COMMAND ${CMAKE_OBJCOPY} -O binary --only-section=.nv_fatbin ${out}.o ${out})
  else()
    set(compile ${SATCHEL_NVCC} -fatbin ${flags} -o ${out})
  endif()
  add_custom_command(OUTPUT ${out} COMMAND ${compile} DEPENDS ${name}.cu DEPFILE ${out}.d COMMENT "CUDA kernels of ${name}.cu" VERBATIM)
  list(APPEND fatbins ${out})
  list(APPEND packed "${name},${least},${names},${out}")
endmacro()

file(STRINGS sources.txt lines REGEX "^[^#]")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS sources.txt)
foreach(line IN LISTS lines)
  separate_arguments(words UNIX_COMMAND "${line}")
  list(POP_FRONT words name least)
  set(but 0)
  set(below 1000)
  if(least MATCHES "^([0-9]+)~([0-9]+)$") # from the first on, but not the second
    set(least ${CMAKE_MATCH_1})
    set(but ${CMAKE_MATCH_2})
  elseif(least MATCHES "^([0-9]+)<([0-9]+)$") # from the first on, below the second
    set(least ${CMAKE_MATCH_1})
    set(below ${CMAKE_MATCH_2})
  endif()
  string(REPLACE "," ";" only "${least}") # more than one: for these alone
  list(LENGTH only n_only)
  list(GET only 0 least)
  set(targets)
  set(names)
  set(majors)
  foreach(arch IN LISTS architectures)
    string(REGEX MATCH "[0-9]+" number ${arch})
    string(REGEX REPLACE ".$" "" major ${number})
    if(n_only GREATER 1)
      set(own ${arch})
      if(NOT own IN_LIST only)
        set(own ${number}a) # with architecture-specific instructions
      endif()
      if(own IN_LIST only)
        list(APPEND targets -gencode=arch=compute_${own},code=sm_${own})
        string(APPEND names "sm_${own} ")
      endif()
      continue()
    endif()
    # From 90 on a file has instructions of sm_90a. Machine code runs on later devices of its major.
    if(number GREATER_EQUAL least AND number LESS below AND NOT number EQUAL but AND (least LESS 90 OR arch STREQUAL "90a")
       AND NOT major IN_LIST majors)
      list(APPEND majors ${major})
      list(APPEND targets -gencode=arch=compute_${arch},code=sm_${arch})
      string(APPEND names "sm_${arch} ")
    endif()
  endforeach()
  if(targets AND ptx AND name STREQUAL "portable")
    list(APPEND targets -gencode=arch=compute_${least},code=compute_${least})
    string(APPEND names "PTX of compute_${least}")
  endif()
  if(targets)
    string(STRIP "${names}" names)
    satchel_fatbin(${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin "${names}" ${targets})
  endif()
  foreach(lower IN LISTS SATCHEL_CUDA_LOWERED)
    if(lower GREATER_EQUAL least AND lower LESS below AND least LESS 90 AND (n_only EQUAL 1 OR lower IN_LIST only))
      satchel_fatbin(${CMAKE_CURRENT_BINARY_DIR}/${name}.${lower}.fatbin "sm_${SATCHEL_CUDA_LOWERED_TO} of compute_${lower}"
                     -gencode=arch=compute_${lower},code=sm_${SATCHEL_CUDA_LOWERED_TO})
    endif()
  endforeach()
endforeach()
add_custom_command(
  OUTPUT ${archive}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/../gpu/pack.py ${archive} ${driver} ${packed}
  DEPENDS ../gpu/pack.py ${fatbins} VERBATIM)
