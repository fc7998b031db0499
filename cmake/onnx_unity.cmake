# SPDX-License-Identifier: Apache-2.0
# For the build of onnx, included by its project(): its sources share most of their headers, so many are compiled together.
# The generated sources of its protocol have equal names and are apart. All of it runs when a model is read, not when it
# trains: it is compiled with less optimisation. The conversion of versions is left out; what calls it is left out, too, by
# --gc-sections, when a library of ours is linked.
function(caesura_compile_onnx_faster)
  get_target_property(sources onnx SOURCES)
  list(FILTER sources EXCLUDE REGEX "/version_converter/|/ir_pb_converter")
  set_target_properties(onnx PROPERTIES SOURCES "${sources}" UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
  target_compile_options(onnx PRIVATE -O1 -ffunction-sections -fdata-sections)
  target_compile_options(onnx_proto PRIVATE -O1)
endfunction()
cmake_language(DEFER CALL caesura_compile_onnx_faster)
