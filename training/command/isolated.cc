// SPDX-License-Identifier: Apache-2.0
#include "training/command/isolated.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <string_view>

namespace caesura::command {
namespace {

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t put = ::write(fd, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return;
    text.remove_prefix(static_cast<size_t>(put));
  }
}

// Reads until the other end is closed; false when that takes longer than `seconds`.
bool ReadAll(int fd, int seconds, std::string* out) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(seconds);
  char block[4096];
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd watched = {fd, POLLIN, 0};
    const int ready = left > 0 ? ::poll(&watched, 1, static_cast<int>(left)) : 0;
    if (ready == 0) return false;
    if (ready < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    const ssize_t got = ::read(fd, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    out->append(block, static_cast<size_t>(got));
  }
}

}  // namespace

std::string RunIsolated(const std::function<std::string()>& work, int seconds) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe could be made";
  std::fflush(nullptr);  // or the child would print what is waiting here once more
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return "no process could be started";
  }
  if (child == 0) {
    ::close(ends[0]);
    WriteAll(ends[1], work());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string result;
  const bool in_time = ReadAll(ends[0], seconds, &result);
  ::close(ends[0]);
  if (!in_time) ::kill(child, SIGKILL);
  int how = 0;
  while (::waitpid(child, &how, 0) < 0 && errno == EINTR) continue;
  if (!in_time) return kTimedOut;
  return WIFEXITED(how) && WEXITSTATUS(how) == 0 ? result : kCrashed;
}

}  // namespace caesura::command
