# SPDX-License-Identifier: Apache-2.0
# Names the files that `cmake --install` puts in place, and where. Wheels take the component "wheel".
include(CMakePackageConfigHelpers)

# The headers and the files of find_package(caesura), which are in a wheel, too.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/public_headers.txt caesura_headers REGEX "^[a-z]")
if(NOT CAESURA_TORCH)
  list(FILTER caesura_headers EXCLUDE REGEX "^torch_bridge/")
endif()
foreach(header ${caesura_headers})
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CAESURA_HEADERS_DIR}/${folder} COMPONENT wheel)
endforeach()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/caesura-config.cmake.in
                              ${PROJECT_BINARY_DIR}/caesura-config.cmake INSTALL_DESTINATION ${CAESURA_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/caesura-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/caesura-config.cmake ${PROJECT_BINARY_DIR}/caesura-config-version.cmake
        ${PROJECT_SOURCE_DIR}/cmake/caesura-torch.cmake DESTINATION ${CAESURA_PACKAGE_DIR} COMPONENT wheel)
install(EXPORT caesura-targets NAMESPACE caesura:: DESTINATION ${CAESURA_PACKAGE_DIR} COMPONENT wheel)

if(SKBUILD)  # a wheel: everything beside the package's own files, libraries that no system must have included
  foreach(target caesura caesura_python caesura_openvino caesura_runtime_caesura caesura_runtime_openvino)
    if(TARGET ${target})
      # OpenVINO and PyTorch are wheels of their own (the extras "openvino" and "torch"), which lie beside this one. Of
      # PyTorch's libraries only OpenMP's is taken: a process must have one, and PyTorch takes its own.
      set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN" INSTALL_RPATH_USE_LINK_PATH OFF)
      if(target MATCHES "openvino$")
        set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../openvino/libs")
      endif()
      set(export)
      if(target STREQUAL "caesura")
        set(export EXPORT caesura-targets)
      endif()
      install(TARGETS ${target} ${export} LIBRARY DESTINATION caesura COMPONENT wheel)
    endif()
  endforeach()
  foreach(root ${CAESURA_BRIDGES})
    caesura_torch_minor(minor ${root})
    install(TARGETS caesura_torch${minor} EXPORT caesura-torch${minor} LIBRARY DESTINATION caesura/torch${minor} COMPONENT wheel)
    install(TARGETS caesura_runtime_torch${minor} LIBRARY DESTINATION caesura/torch${minor} COMPONENT wheel)
    install(EXPORT caesura-torch${minor} FILE caesura-torch${minor}-targets.cmake NAMESPACE caesura::
            DESTINATION ${CAESURA_PACKAGE_DIR} COMPONENT wheel)
  endforeach()
  # caesura.command becomes this program.
  set_target_properties(caesura_command PROPERTIES INSTALL_RPATH "$ORIGIN/.." INSTALL_RPATH_USE_LINK_PATH OFF)
  install(TARGETS caesura_command RUNTIME DESTINATION caesura/bin COMPONENT wheel)
  install(FILES ${PROJECT_BINARY_DIR}/python/caesura/_core.pyi DESTINATION caesura COMPONENT wheel)
  foreach(target DNNL::dnnl protobuf::libprotobuf)
    get_target_property(library ${target} IMPORTED_LOCATION_RELEASE)
    if(NOT library)
      get_target_property(library ${target} IMPORTED_LOCATION)
    endif()
    file(REAL_PATH ${library} library)
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE headers COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "SONAME +([^ \n]+)" soname ${headers})
    install(PROGRAMS ${library} DESTINATION caesura RENAME ${CMAKE_MATCH_1} COMPONENT wheel)
  endforeach()
  # For systems that have none, where PyTorch is not installed.
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.so.1 OUTPUT_VARIABLE library
                  OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  file(REAL_PATH ${library} library)
  install(PROGRAMS ${library} DESTINATION caesura RENAME libgomp.so.1 COMPONENT wheel)
  return()
endif()
# oneDNN stays where it was found.
set_target_properties(caesura PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS caesura EXPORT caesura-targets)
# OpenVINO stays where it was found.
foreach(target caesura_openvino caesura_runtime_caesura caesura_runtime_openvino caesura_runtime_torch)
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
if(CAESURA_TORCH)
  install(TARGETS caesura_torch EXPORT caesura-torch)
  install(EXPORT caesura-torch FILE caesura-torch${caesura_torch_minor}-targets.cmake NAMESPACE caesura::
          DESTINATION ${CAESURA_PACKAGE_DIR})
endif()
install(FILES LICENSE THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
