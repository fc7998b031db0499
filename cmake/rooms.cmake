# SPDX-License-Identifier: Apache-2.0
# Rooms: folders whose sources see the headers of the folders that they name, and no others.

# The flags and libraries of all rooms.
add_library(caesura_rooms INTERFACE)
target_compile_options(caesura_rooms INTERFACE -Wall -Wextra ${CAESURA_SANITIZE_OPTIONS})
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # GCC 14 reports these in its own std::string, std::vector and std::shared_ptr, where nothing is wrong.
  target_compile_options(caesura_rooms INTERFACE -Wno-maybe-uninitialized -Wno-array-bounds -Wno-free-nonheap-object -Wno-stringop-overflow)
endif()
target_link_libraries(caesura_rooms INTERFACE openmp dlpack ONNX::onnx ONNX::onnx_proto protobuf::libprotobuf DNNL::dnnl
                      nlohmann_json::nlohmann_json ZLIB::ZLIB)
# Kernels: fully optimised but under sanitizers, where build time counts more; no errno and no traps to preserve.
set(CAESURA_KERNEL_OPTIONS -fno-math-errno -fno-trapping-math)
if(NOT CAESURA_SANITIZE)
  list(APPEND CAESURA_KERNEL_OPTIONS -O3)
endif()

# caesura_room(FOLDER USES FOLDER... [PART NAME] [SOURCES FILE...] [EXCLUDE REGEX] [SINGLE FILE...]
#              [HEADERS standard|graph|kernels|cuda] [LATER])
#
# Compiles FOLDER's sources (or SOURCES; without those that EXCLUDE matches) as a part of libcaesura, an object library
# caesura_FOLDER[_PART]. Its include root holds links to FOLDER and to those that it USES, so that any other #include
# fails. Up to eight sources of one folder are compiled together, so that their headers are parsed once; those in SINGLE, which
# have options of their own, by themselves. HEADERS: which headers are parsed once for all rooms that say the same; with
# kernels and cuda, the flags too. LATER: the first example does not need it (caesura_first is without it).
function(caesura_room FOLDER)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "LATER" "PART;EXCLUDE;HEADERS" "SOURCES;USES;SINGLE")
  string(REPLACE "/" "_" TARGET "caesura_${FOLDER}")
  if(ROOM_PART)
    string(APPEND TARGET "_${ROOM_PART}")
  endif()
  if(NOT ROOM_SOURCES)
    file(GLOB_RECURSE ROOM_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${FOLDER}/*.cc)
  endif()
  if(ROOM_EXCLUDE)
    list(FILTER ROOM_SOURCES EXCLUDE REGEX "${ROOM_EXCLUDE}")
  endif()
  list(SORT ROOM_SOURCES)
  set(COMPILED ${ROOM_SOURCES} ${ROOM_SINGLE})
  list(REMOVE_DUPLICATES COMPILED)
  if(CAESURA_UNITY)
    set(COMPILED ${ROOM_SINGLE})
    list(REMOVE_ITEM ROOM_SOURCES ${ROOM_SINGLE})
    set(LAST)
    foreach(SOURCE ${ROOM_SOURCES} end)
      cmake_path(GET SOURCE PARENT_PATH DIRECTORY)
      list(LENGTH TOGETHER COUNT)
      if(COUNT GREATER 0 AND (COUNT EQUAL 8 OR NOT DIRECTORY STREQUAL LAST))
        list(LENGTH COMPILED NUMBER)
        set(UNITED ${PROJECT_BINARY_DIR}/united/${TARGET}_${NUMBER}.cc)
        list(JOIN TOGETHER "\n" TEXT)
        file(CONFIGURE OUTPUT ${UNITED} CONTENT "${TEXT}\n" @ONLY)
        list(APPEND COMPILED ${UNITED})
        set(TOGETHER)
      endif()
      set(LAST "${DIRECTORY}")
      cmake_path(RELATIVE_PATH SOURCE BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE PATH)
      list(APPEND TOGETHER "#include \"${PATH}\"")
    endforeach()
  endif()
  add_library(${TARGET} OBJECT ${COMPILED})
  target_link_libraries(${TARGET} PRIVATE caesura_rooms)
  target_sources(caesura PRIVATE $<TARGET_OBJECTS:${TARGET}>)
  if(NOT ROOM_LATER)
    target_sources(caesura_first PRIVATE $<TARGET_OBJECTS:${TARGET}>)
  endif()

  set(ROOT ${PROJECT_BINARY_DIR}/rooms/${TARGET})
  file(REMOVE_RECURSE ${ROOT})
  list(APPEND ROOM_USES ${FOLDER})
  list(SORT ROOM_USES)
  foreach(SEEN ${ROOM_USES})
    if(NOT EXISTS ${ROOT}/${SEEN})  # it may lie in a folder that is linked already
      cmake_path(GET SEEN PARENT_PATH PARENT)
      file(MAKE_DIRECTORY ${ROOT}/${PARENT})
      file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${SEEN} ${ROOT}/${SEEN} SYMBOLIC)
    endif()
  endforeach()
  target_include_directories(${TARGET} PRIVATE ${ROOT})

  if(ROOM_HEADERS STREQUAL "kernels")
    target_compile_options(${TARGET} PRIVATE ${CAESURA_KERNEL_OPTIONS})
  elseif(ROOM_HEADERS STREQUAL "cuda")
    target_include_directories(${TARGET} SYSTEM PRIVATE ${CUDA_HEADERS_DIR})
  elseif(NOT ROOM_HEADERS)
    set(ROOM_HEADERS graph)
  endif()
  get_property(MAKER GLOBAL PROPERTY CAESURA_PARSED_${ROOM_HEADERS})
  if(MAKER)
    target_precompile_headers(${TARGET} REUSE_FROM ${MAKER})
  else()  # the first room makes them
    set_property(GLOBAL PROPERTY CAESURA_PARSED_${ROOM_HEADERS} ${TARGET})
    target_precompile_headers(${TARGET} PRIVATE ${CAESURA_${ROOM_HEADERS}_HEADERS})
  endif()
  if(CAESURA_UNITY)  # GCC takes united sources for headers, whose classes must not hold anonymous types
    target_compile_options(${TARGET} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()
