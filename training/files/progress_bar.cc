// SPDX-License-Identifier: Apache-2.0
#include "training/files/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace caesura {
namespace {

constexpr int kBarWidth = 24;
constexpr double kSecondsBetweenDrawings = 0.1;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename... Args>
std::string Format(const char* format, Args... args) {
  char text[64];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

}  // namespace

std::string ClockText(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 359999.0) + 0.5);
  const int hours = static_cast<int>(whole / 3600), minutes = static_cast<int>(whole / 60 % 60);
  const int rest = static_cast<int>(whole % 60);
  return hours > 0 ? Format("%d:%02d:%02d", hours, minutes, rest)
                   : Format("%d:%02d", minutes, rest);
}

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(std::move(options)), done_(options_.begin) {
  if (!options_.seconds) options_.seconds = SteadySeconds;
  if (!options_.is_terminal) options_.is_terminal = ::isatty(::fileno(options_.out)) == 1;
  begin_seconds_ = options_.seconds();
}

std::string ProgressBar::Line() const {
  const double total = static_cast<double>(std::max<int64_t>(options_.total, 1));
  const double part = std::clamp(static_cast<double>(done_) / total, 0.0, 1.0);
  const int filled = static_cast<int>(part * kBarWidth);
  std::string line = options_.label;
  if (*options_.is_terminal)
    line += " [" + std::string(filled, '#') + std::string(kBarWidth - filled, '-') + "]";
  line += Format(" %3d%% ", static_cast<int>(part * 100)) + std::to_string(done_) + "/" +
          std::to_string(options_.total);
  if (!note_.empty()) line += "  " + note_;
  const double elapsed = options_.seconds() - begin_seconds_;
  const double rate = elapsed > 0 ? static_cast<double>(done_ - options_.begin) / elapsed : 0;
  if (rate <= 0) return line;
  line += Format(rate < 1 ? "  %.2f/s" : "  %.1f/s", rate);
  if (done_ >= options_.total) return line + "  " + ClockText(elapsed);
  return line + "  " + ClockText(static_cast<double>(options_.total - done_) / rate) + " left";
}

void ProgressBar::Draw() {
  const std::string line = Line();
  if (*options_.is_terminal) {
    const size_t rest =
        drawn_width_ > line.size() ? drawn_width_ - line.size() : 0;  // of a longer line before
    std::fprintf(options_.out, "\r%s%s", line.c_str(), std::string(rest, ' ').c_str());
    drawn_width_ = line.size();
  } else {
    std::fprintf(options_.out, "%s\n", line.c_str());
  }
  std::fflush(options_.out);
}

void ProgressBar::Update(int64_t done, const std::string& note) {
  done_ = done;
  note_ = note;
  if (!*options_.is_terminal) {
    const int64_t twentieth = options_.total > 0 ? 20 * done / options_.total : 20;
    if (twentieth == drawn_twentieth_) return;
    drawn_twentieth_ = twentieth;
  } else {
    const double now = options_.seconds();
    if (drawn_seconds_ >= 0 && now - drawn_seconds_ < kSecondsBetweenDrawings) return;
    drawn_seconds_ = now;
  }
  Draw();
}

void ProgressBar::Finish() {
  if (*options_.is_terminal) {
    Draw();
    std::fprintf(options_.out, "\n");
    std::fflush(options_.out);
  } else if (drawn_twentieth_ < 20) {
    Draw();  // it ended before its end
  }
}

}  // namespace caesura
