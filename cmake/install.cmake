# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where.
include(CMakePackageConfigHelpers)
set(caesura_package ${CMAKE_INSTALL_LIBDIR}/cmake/caesura)
# oneDNN stays where it was found.
set_target_properties(caesura PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS caesura EXPORT caesura-targets)
foreach(folder core graph_transforms training)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/caesura
          FILES_MATCHING PATTERN "*.h" PATTERN "onnx_proto.h" EXCLUDE PATTERN "dnnl_*.h" EXCLUDE
          PATTERN "command" EXCLUDE)
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
