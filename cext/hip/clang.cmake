# Kernels by clang: a code object for each of SATCHEL_HIP_ARCHITECTURES, in one bundle, from which AMD's driver takes what fits, and
# the source text for hipRTC. `archive` becomes empty where none are wanted or can be made.
set(present OFF)
if(EXISTS /dev/kfd OR EXISTS /opt/rocm)
  set(present ON)
endif()
satchel_wanted(HIP ${present} wanted)
if(NOT wanted)
  set(archive)
  return()
endif()
find_program(SATCHEL_CLANG NAMES amdclang++ clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 PATHS /opt/rocm/bin)
if(NOT SATCHEL_CLANG)
  message(NOTICE "no clang++-18 or newer: the HIP backend is left out")
  set(archive)
  return()
endif()
set(SATCHEL_HIP_ARCHITECTURES "gfx906;gfx90a;gfx942;gfx1030;gfx1100;gfx1201" CACHE STRING
    "processors that the HIP kernels are built for")
set(SATCHEL_HIP_EXTRA "" CACHE STRING "further entries of the bundle, id=file")

set(compile ${SATCHEL_CLANG} -x hip -std=c++17 -O3 -ffp-contract=off -Wall -Werror -Wno-unused-function
            --offload-device-only -nogpuinc -nogpulib -ffreestanding -nostdlibinc -I${CMAKE_CURRENT_SOURCE_DIR}/include
            -I${CMAKE_CURRENT_SOURCE_DIR} -I${CMAKE_CURRENT_SOURCE_DIR}/../kernels -I${CMAKE_CURRENT_SOURCE_DIR}/../include
            -I${CMAKE_CURRENT_SOURCE_DIR}/../quant -I${SATCHEL_GENERATED})
set(source ${CMAKE_CURRENT_SOURCE_DIR}/portable.hip)
# A clang without AMD's target or linker does not count.
list(GET SATCHEL_HIP_ARCHITECTURES 0 first)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/empty.hip "")
execute_process(
  COMMAND ${SATCHEL_CLANG} -x hip --offload-arch=${first} --offload-device-only --no-gpu-bundle-output -nogpuinc -nogpulib
          -o ${CMAKE_CURRENT_BINARY_DIR}/empty.co ${CMAKE_CURRENT_BINARY_DIR}/empty.hip
  RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
if(failed)
  message(NOTICE "${SATCHEL_CLANG} makes no code for ${first} (is lld installed?): the HIP backend is left out")
  set(archive)
  return()
endif()

set(parts)
set(objects)
foreach(arch IN LISTS SATCHEL_HIP_ARCHITECTURES)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/portable_${arch}.co)
  add_custom_command(
    OUTPUT ${object}
    COMMAND ${compile} --offload-arch=${arch} --no-gpu-bundle-output -DIMAGE=image_${arch} -MD -MF ${object}.d -o ${object} ${source}
    DEPENDS ${source} DEPFILE ${object}.d COMMENT "HIP kernels for ${arch}" VERBATIM)
  list(APPEND parts ${arch}=${object})
  list(APPEND objects ${object})
endforeach()
foreach(extra IN LISTS SATCHEL_HIP_EXTRA)
  string(REGEX REPLACE "^[^=]*=" "" file ${extra})
  list(APPEND parts ${extra})
  list(APPEND objects ${file})
endforeach()
set(bundle ${CMAKE_CURRENT_BINARY_DIR}/portable.bundle)
add_custom_command(
  OUTPUT ${bundle}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bundle.py ${bundle} ${parts}
  DEPENDS bundle.py ${objects} VERBATIM)

# hipRTC's input: the preprocessed source as one zero-terminated text.
set(text ${CMAKE_CURRENT_BINARY_DIR}/portable.text)
add_custom_command(
  OUTPUT ${text}
  COMMAND ${compile} -DPORT_AS_TEXT --offload-arch=${first} -E -P -MD -MF ${text}.d -MT ${text} -o ${text} ${source}
  COMMAND ${Python_EXECUTABLE} -c "open(r'${text}', 'ab').write(b'\\0')"
  DEPENDS ${source} DEPFILE ${text}.d VERBATIM)

list(JOIN SATCHEL_HIP_ARCHITECTURES " " names)
add_custom_command(
  OUTPUT ${archive}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/../gpu/pack.py ${archive} 0 "portable,0,${names},${bundle}"
          portable,0,source,${text}
  DEPENDS ../gpu/pack.py ${bundle} ${text} VERBATIM)
