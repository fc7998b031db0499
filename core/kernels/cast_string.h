// SPDX-License-Identifier: Apache-2.0
// Numbers as text, for Cast. Floats are written as NumPy does: the shortest digits that read back
// as the same number, plain from 1e-4 up to 1e16, with an exponent beyond; "nan", "inf", "-inf";
// bools are "True" and "False".
#ifndef CAESURA_CORE_KERNELS_CAST_STRING_H_
#define CAESURA_CORE_KERNELS_CAST_STRING_H_

#include <cstdint>
#include <string>

#include "core/tensor/dtype.h"

namespace caesura {

std::string FormatElement(float value);
std::string FormatElement(double value);
std::string FormatElement(Float16 value);
std::string FormatElement(BFloat16 value);
std::string FormatElement(bool value);
std::string FormatElement(int64_t value);
std::string FormatElement(uint64_t value);

// False when `text` is no number. Spaces around it and a leading + are accepted, "INF" and "NaN" in
// any case. An integer may be written as a real number ("100.5" is 100); a bool as true or false.
bool ParseElement(const std::string& text, float* value);
bool ParseElement(const std::string& text, double* value);
bool ParseElement(const std::string& text, bool* value);
bool ParseElement(const std::string& text, int64_t* value);
bool ParseElement(const std::string& text, uint64_t* value);

}  // namespace caesura

#endif  // CAESURA_CORE_KERNELS_CAST_STRING_H_
