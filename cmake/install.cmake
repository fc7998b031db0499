# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where.
if(SKBUILD)  # a wheel: everything beside the package's own files, libraries that no system must have included
  set(caesura_plugins caesura_openvino caesura_runtime_caesura caesura_runtime_openvino caesura_runtime_torch)
  foreach(target caesura caesura_python caesura_torch ${caesura_plugins})
    if(TARGET ${target})
      # OpenVINO and PyTorch are wheels of their own (the extras "openvino" and "torch"), which lie beside this one.
      set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH OFF)
      if(target MATCHES "openvino$")
        set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/../openvino/libs")
      elseif(target MATCHES "torch$")
        set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN;$ORIGIN/../torch/lib")
      endif()
      install(TARGETS ${target} LIBRARY DESTINATION caesura COMPONENT wheel)
    endif()
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
  return()
endif()
include(CMakePackageConfigHelpers)
set(caesura_package ${CMAKE_INSTALL_LIBDIR}/cmake/caesura)
# oneDNN stays where it was found.
set_target_properties(caesura PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS caesura EXPORT caesura-targets)
foreach(folder core graph_transforms training)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/caesura
          FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "onnx_proto.h" EXCLUDE PATTERN "dnnl_*.h" EXCLUDE
          PATTERN "command" EXCLUDE PATTERN "openvino" EXCLUDE)
endforeach()
# OpenVINO stays where it was found.
foreach(target caesura_openvino caesura_runtime_caesura caesura_runtime_openvino caesura_runtime_torch)
  if(TARGET ${target})
    install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()
if(CAESURA_TORCH)
  install(TARGETS caesura_torch EXPORT caesura-torch-targets)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/torch_bridge DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/caesura
          FILES_MATCHING PATTERN "*.h" PATTERN "python" EXCLUDE)
  install(EXPORT caesura-torch-targets NAMESPACE caesura:: DESTINATION ${caesura_package})
endif()
install(EXPORT caesura-targets NAMESPACE caesura:: DESTINATION ${caesura_package})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/caesura-config.cmake.in
                              ${PROJECT_BINARY_DIR}/caesura-config.cmake INSTALL_DESTINATION ${caesura_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/caesura-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/caesura-config.cmake ${PROJECT_BINARY_DIR}/caesura-config-version.cmake
        DESTINATION ${caesura_package})
install(FILES LICENSE THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
