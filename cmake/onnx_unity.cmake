# Compiles the sources of the onnx library together (cmake/setup.sh), which takes little more than half of the CPU time.
# The files of protobuf's compiler cannot be: they use the same names.
cmake_language(DEFER CALL set_target_properties onnx PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
