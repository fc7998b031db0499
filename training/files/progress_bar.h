// SPDX-License-Identifier: Apache-2.0
// A line about a long run: how far, what rate, how long still. On a terminal it is redrawn in
// place; elsewhere (a log) it is a plain line for every twentieth of the way.
//
//   train [#########---------------]  38% 380/1000  loss 2.104  41.3/s  0:15 left
#ifndef CAESURA_TRAINING_FILES_PROGRESS_BAR_H_
#define CAESURA_TRAINING_FILES_PROGRESS_BAR_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

namespace caesura {

// The label, length and output of a progress bar. `total` and `begin` count steps.
struct ProgressBarOptions {
  std::string label = "train";
  int64_t total = 0;
  int64_t begin = 0;  // done by an earlier run: counts as way, not for the rate
  std::FILE* out = stderr;
  std::optional<bool> is_terminal = {};  // asked of `out` when not said
  std::function<double()> seconds = {};  // a clock; empty: the steady one
};

// Draws the line. Thread safety: one thread at a time.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressBarOptions options);
  // `note` is what changes besides ("loss 2.104"). Cheap enough for every step: draws ten times a
  // second at most.
  void Update(int64_t done, const std::string& note);
  // Draws the last state and ends the line. Once.
  void Finish();

 private:
  std::string Line() const;
  void Draw();

  ProgressBarOptions options_;
  double begin_seconds_, drawn_seconds_ = -1;
  int64_t done_, drawn_twentieth_ = -1;
  size_t drawn_width_ = 0;
  std::string note_;
};

// "0:07", "12:34", "1:02:03"
std::string ClockText(double seconds);

}  // namespace caesura

#endif  // CAESURA_TRAINING_FILES_PROGRESS_BAR_H_
