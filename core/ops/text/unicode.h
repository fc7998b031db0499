// SPDX-License-Identifier: Apache-2.0
// White space and upper and lower case of Unicode, for the string ops. A letter is mapped to one
// letter. The process's locale changes nothing.
#ifndef CAESURA_CORE_OPS_TEXT_UNICODE_H_
#define CAESURA_CORE_OPS_TEXT_UNICODE_H_

#include <string>
#include <string_view>

namespace caesura {

bool IsSpace(char32_t code_point);
char32_t ToLower(char32_t code_point);
char32_t ToUpper(char32_t code_point);
// Bytes that are not valid UTF-8 stay as they are.
std::string ToLower(std::string_view text);
std::string ToUpper(std::string_view text);

}  // namespace caesura

#endif  // CAESURA_CORE_OPS_TEXT_UNICODE_H_
