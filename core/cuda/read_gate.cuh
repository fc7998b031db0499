// SPDX-License-Identifier: Apache-2.0
// Tells the kernels after it whether they may write (cuda_device.h).

// By its number: the device may come only now to the gate of an earlier step, which was opened to
// write.
extern "C" __global__ void read_gate(const unsigned* forbidden, unsigned number, unsigned* cell) {
  *cell = *forbidden == number;
}
