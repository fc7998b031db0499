// SPDX-License-Identifier: Apache-2.0
// Tells the planted faults of a copy of the tree which one of them is on (README.md).
#ifndef CAESURA_TESTS_FAULTS_FAULT_H_
#define CAESURA_TESTS_FAULTS_FAULT_H_

#include <cstdlib>

// The number in CAESURA_FAULT; 0 for none.
inline const int caesura_fault_on = [] {
  const char* number = std::getenv("CAESURA_FAULT");
  return number == nullptr ? 0 : std::atoi(number);
}();

inline bool caesura_fault(int number) { return number == caesura_fault_on; }

#endif  // CAESURA_TESTS_FAULTS_FAULT_H_
