# SPDX-License-Identifier: Apache-2.0
# For the build of onnx, included by its project(): its sources share most of their headers, so six are compiled
# together. The generated sources of its protocol have equal names and are left alone. All of it runs when a model is read,
# not when it trains: with less optimisation it compiles in half the time.
cmake_language(DEFER CALL set_target_properties onnx PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
cmake_language(DEFER CALL target_compile_options onnx PRIVATE -O1)
