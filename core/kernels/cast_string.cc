// SPDX-License-Identifier: Apache-2.0
#include "core/kernels/cast_string.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/kernels/simd/convert.h"

namespace caesura {
namespace {

// The shortest digits that read back, positional or scientific.
template <typename T>
std::string Shortest(T value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const T magnitude = std::fabs(value);
  const bool plain = magnitude == 0 || (magnitude >= T(1e-4) && magnitude < T(1e16));
  char text[64];
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(text, text + sizeof(text), value, format);
  std::string out(text, end.ptr);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

// The 16-bit types need fewer digits than float: the least precision at which the text reads back
// as `value`.
template <typename T>
std::string ShortestHalf(T value) {
  const float wide = value;
  if (!std::isfinite(wide)) return FormatElement(wide);
  for (int digits = 1; digits <= 9; ++digits) {
    char text[64];
    const auto end =
        std::to_chars(text, text + sizeof(text), wide, std::chars_format::scientific, digits - 1);
    float parsed = 0;
    std::from_chars(text, end.ptr, parsed);
    if (T(parsed).bits == value.bits) return FormatElement(parsed);
  }
  return FormatElement(wide);
}

std::string_view Trimmed(std::string_view text) {
  auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+') text.remove_prefix(1);
  return text;
}

// The whole text as a T.
template <typename T>
bool ReadAll(std::string_view text, T* value) {
  const auto end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

// from_chars leaves the value alone beyond the range: there it becomes infinity, or zero below the
// smallest.
template <typename T>
bool ReadReal(const std::string& text, T* value) {
  const std::string_view trimmed = Trimmed(text);
  const auto end = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), *value);
  if (end.ptr != trimmed.data() + trimmed.size() || trimmed.empty()) return false;
  if (end.ec == std::errc()) return true;
  if (end.ec != std::errc::result_out_of_range) return false;
  const size_t e = trimmed.find_first_of("eE");
  const bool tiny = e != std::string_view::npos && e + 1 < trimmed.size() && trimmed[e + 1] == '-';
  const T magnitude = tiny ? T{0} : std::numeric_limits<T>::infinity();
  *value = trimmed.front() == '-' ? -magnitude : magnitude;
  return true;
}

template <typename T>
bool ReadInteger(const std::string& text, T* value) {
  if (ReadAll(Trimmed(text), value)) return true;
  double real;
  if (!ReadReal(text, &real)) return false;
  *value = ConvertElement<T>(real);
  return true;
}

}  // namespace

std::string FormatElement(float value) { return Shortest(value); }
std::string FormatElement(double value) { return Shortest(value); }
std::string FormatElement(Float16 value) { return ShortestHalf(value); }
std::string FormatElement(BFloat16 value) { return ShortestHalf(value); }
std::string FormatElement(bool value) { return value ? "True" : "False"; }
std::string FormatElement(int64_t value) { return std::to_string(value); }
std::string FormatElement(uint64_t value) { return std::to_string(value); }

bool ParseElement(const std::string& text, float* value) { return ReadReal(text, value); }
bool ParseElement(const std::string& text, double* value) { return ReadReal(text, value); }
bool ParseElement(const std::string& text, int64_t* value) { return ReadInteger(text, value); }
bool ParseElement(const std::string& text, uint64_t* value) { return ReadInteger(text, value); }

bool ParseElement(const std::string& text, bool* value) {
  std::string lower(Trimmed(text));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  double real = 0;
  if (lower != "true" && lower != "false" && !ReadReal(lower, &real)) return false;
  *value = lower == "true" || real != 0;
  return true;
}

}  // namespace caesura
