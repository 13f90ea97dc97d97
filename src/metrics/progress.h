// Live progress bar: one terminal line, redrawn at most 10 times per second and erased on destruction. It is hidden
// around every line of base/log.h, so that log lines and bar do not mix.
#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/choices.h"
#include "base/output.h"

namespace athanor {

bool wants_bar(Progress, int fd);

struct BarState {
  int64_t step = 0, total_steps = 0;
  double loss = 0, tokens_per_second = 0, eta_seconds = 0;
  std::vector<double> losses;  // recent losses, oldest first, for the sparkline
};

// One line of at most `columns` terminal columns, without control codes; on a narrow terminal the least important
// fields are dropped. `unicode` allows block characters.
std::string render_bar(const BarState&, int columns, bool unicode);

class ProgressBar {
 public:
  static constexpr std::chrono::milliseconds kInterval{100};

  explicit ProgressBar(int fd);  // at most one per process
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(const BarState&);  // redraws unless the last drawing is younger than kInterval
  void hide();                   // hides the bar until show(); calls nest
  void show();

 private:
  void draw();
  void erase();

  std::mutex mutex_;
  int fd_;
  Output output_;
  bool unicode_;
  int hidden_ = 0;
  bool drawn_ = false;  // the bar is on the screen
  bool known_ = false;  // there is a state to draw
  BarState state_;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace athanor
