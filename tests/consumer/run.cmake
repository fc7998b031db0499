# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=... -DSOURCE=... -DTorch_DIR=... -DLAUNCHER=... -P run.cmake: installs the build into an
# empty folder, then configures, builds and runs the consumer.
set(prefix ${BUILD}/consumer/install)
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed: ${ARGV}")
  endif()
endfunction()
file(REMOVE_RECURSE ${prefix})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
set(ENV{CMAKE_CXX_COMPILER_LAUNCHER} "${LAUNCHER}")  # a list, which arguments would take apart
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD}/consumer/build -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release
    -DTorch_DIR=${Torch_DIR})
run(${CMAKE_COMMAND} --build ${BUILD}/consumer/build --parallel 2)
set(ENV{CAESURA_PLUGIN_PATH} ${BUILD}/consumer/build)
run(${BUILD}/consumer/build/consumer)
