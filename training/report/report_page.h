// SPDX-License-Identifier: Apache-2.0
// The files of training/report/page, as CMake embeds them. Private to training/report.
#ifndef CAESURA_TRAINING_REPORT_REPORT_PAGE_H_
#define CAESURA_TRAINING_REPORT_REPORT_PAGE_H_

namespace caesura::report_page {

extern const char kHtml[];  // with {{title}}, {{style}}, {{data}} and {{script}}
extern const char kStyle[];
extern const char kScript[];

}  // namespace caesura::report_page

#endif  // CAESURA_TRAINING_REPORT_REPORT_PAGE_H_
