// The log line, which begins exactly like Megatron-LM's, and the progress bar on a pseudo-terminal.
#include "metrics/console.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <termios.h>

#include <chrono>
#include <cmath>
#include <regex>
#include <thread>

#include "base/log.h"
#include "tests/expect_error.h"
#include "tests/files.h"
#include "tests/metrics/capture.h"
#include "tests/metrics/terminal.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;

StepMetrics example(int64_t step) {
  StepMetrics m;
  m.step = step;
  m.total_steps = 500000;
  m.consumed_samples = 10240;
  m.consumed_tokens = 10240 * 1024;
  m.global_batch_size = 1024;
  m.loss = 2.35307;
  m.grad_norm = 0.1524;
  m.learning_rate = 3e-4;
  m.loss_scale = 1;
  m.step_ms = 5342.1;
  m.data_ms = 53.421;
  m.tokens_per_second = 196290.3;
  m.mfu = 0.4123;
  m.mfu_full = 0.4512;
  m.memory_used = 61'300'000'000;
  m.eta_seconds = 7860;
  m.loss_z = 0.114;
  m.grad_norm_z = -0.302;
  m.time = 1.7e9;
  return m;
}

std::string without_time(const std::string& line) { return line.substr(line.find(']') + 1); }

TEST(LogLine, MatchesMegatronAndAppendsItsOwnFields) {
  LogInterval interval;
  interval.add(example(10));
  EXPECT_EQ(without_time(interval.line()),
            " iteration       10/  500000 | consumed samples:        10240 | elapsed time per iteration (ms): 5342.1 |"
            " learning rate: 3.000000E-04 | global batch size:  1024 | lm loss: 2.353070E+00 | loss scale: 1.0 |"
            " grad norm: 0.152 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            " tokens/s: 196290.3 | MFU: 41.2% | MFU(full): 45.1% | mem(GB): 61.30 | data(%): 1.0 | ETA: 2h11m |"
            " loss z: +0.11 | grad norm z: -0.30 |");
}

// A mean over the steps in which a source had tokens.
TEST(LogLine, EndsWithTheLossOfEachSource) {
  LogInterval interval;
  StepMetrics m = example(10);
  m.source_losses = {{"web", 2}};
  interval.add(m);
  m.source_losses = {{"code", 1.5}, {"web", 3}};
  interval.add(m);
  m.skipped = true;
  interval.add(m);
  const std::string line = interval.line();
  EXPECT_TRUE(line.ends_with(" grad norm z: -0.30 | by source: web 2.500000E+00, code 1.500000E+00 |")) << line;
}

// As scripts that plot Megatron-LM's logs match it.
TEST(LogLine, IsParsedByMegatronLogParsers) {
  LogInterval interval;
  interval.add(example(10));
  const std::string line = interval.line();
  EXPECT_TRUE(std::regex_search(line, std::regex(R"(^ \[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration)")));
  std::smatch match;
  ASSERT_TRUE(std::regex_search(line, match, std::regex(R"(iteration\s+(\d+)/\s*(\d+) \|.* lm loss: ([\d.E+-]+) \|)")));
  EXPECT_EQ(match[1], "10");
  EXPECT_EQ(match[2], "500000");
  EXPECT_DOUBLE_EQ(std::stod(match[3]), 2.35307);
  EXPECT_EQ(count_of(line, "loss:"), 1) << "no second figure of that name";
  EXPECT_EQ(count_of(line, "grad norm:"), 1);
}

TEST(LogLine, AveragesOverTheInterval) {
  LogInterval interval;
  StepMetrics a = example(1), b = example(2), c = example(3);
  a.loss = 4, a.step_ms = 100, a.tokens_per_second = 1000, a.mfu = 0.1, a.data_ms = 0;
  b.loss = 2, b.step_ms = 300, b.tokens_per_second = 2000, b.mfu = 0.5, b.data_ms = 100;
  c.loss = 99, c.skipped = true, c.step_ms = 100, c.tokens_per_second = 1000, c.mfu = 0.1, c.data_ms = 0;
  for (const auto& m : {a, b, c}) interval.add(m);
  const std::string line = interval.line();
  EXPECT_NE(line.find("lm loss: 3.000000E+00"), std::string::npos) << "a skipped step does not count: " << line;
  EXPECT_NE(line.find("iteration (ms): 166.7 |"), std::string::npos) << line;
  EXPECT_NE(line.find("tokens/s: 1600.0 |"), std::string::npos) << "tokens over time: " << line;
  expect_parts(line, {"MFU: 34.0% |", "data(%): 20.0 |", "skipped iterations:   1 | number of nan iterations:   0 |"});
}

TEST(LogLine, ShowsNonFiniteAndUnknownValues) {
  LogInterval interval;
  StepMetrics m = example(1);
  m.loss = std::nan("");
  m.skipped = true;
  m.mfu = m.mfu_full = m.eta_seconds = m.loss_z = m.grad_norm_z = kUnknown;
  interval.add(m);
  const std::string line = interval.line();
  expect_parts(line, {"lm loss: NAN |", "nan iterations:   1 |", "MFU: - | MFU(full): - |",
                      "ETA: - | loss z: - | grad norm z: - |"});
}

// ---- the sink ----

std::string output_of(int64_t interval, const std::function<void(ConsoleSink&)>& run) {
  const TempDir dir;
  {
    const Fd file(::open((dir / "out").c_str(), O_CREAT | O_WRONLY, 0600));
    ConsoleSink sink({.log_interval = interval, .progress = Progress::off, .out_fd = file.get()});
    run(sink);
  }
  return read_bytes(dir / "out");
}

TEST(Console, PrintsOneLinePerIntervalAndOneForTheLastStep) {
  const std::string out = output_of(10, [](ConsoleSink& sink) {
    for (int64_t s = 1; s <= 25; ++s) {
      StepMetrics m = example(s);
      m.total_steps = 25;
      sink.step(m);
    }
  });
  EXPECT_EQ(count_of(out, "\n"), 3) << out;
  EXPECT_EQ(count_of(out, "] iteration "), 3);
  EXPECT_NE(out.find("iteration       25/      25 |"), std::string::npos) << out;
  EXPECT_EQ(out.find('\x1b'), std::string::npos) << "no control codes in a file";
}

TEST(Console, LongStepsGetTheirOwnLine) {
  const std::string out = output_of(10, [](ConsoleSink& sink) {
    for (int64_t s = 1; s <= 8; ++s) {
      StepMetrics m = example(s);
      m.step_ms = s == 3 ? 61e3 : s > 5 ? 25e3 : 10;
      sink.step(m);
    }
  });
  EXPECT_EQ(count_of(out, "] iteration "), 2) << out;
  expect_parts(out, {"iteration        3/", "iteration        8/"});
}

TEST(Console, EvaluationLinesMatchMegatron) {
  const std::string out =
      output_of(1, [](ConsoleSink& sink) { sink.eval({.step = 7, .loss = 2, .perplexity = 7.389}); });
  expect_parts(out,
               {"\n validation loss at iteration 7 | lm loss value: 2.000000E+00 | lm loss PPL: 7.389000E+00 | \n"});
}

TEST(Console, EvaluationsSayWhetherTheyAreASample) {
  const auto line = [](int64_t windows, double error = 0.0123) {
    return output_of(1, [&](ConsoleSink& sink) {
      sink.eval(
          {.step = 7, .loss = 2, .loss_error = error, .perplexity = 7.389, .windows = windows, .windows_all = 435});
    });
  };
  expect_parts(line(320), {"PPL: 7.389000E+00 | standard error: 1.2E-02 | 320 of 435 windows | \n"});
  EXPECT_NE(line(435).find(" | all 435 windows | \n"), std::string::npos) << line(435);
  EXPECT_NE(line(1, NAN).find("PPL: 7.389000E+00 | 1 of 435 windows | \n"), std::string::npos) << line(1, NAN);
}

TEST(Console, EventsAreLinesAndWarningsGoToTheLog) {
  std::string out;
  const std::string log = stderr_of([&] {
    out = output_of(1, [](ConsoleSink& sink) {
      sink.event({.kind = EventKind::checkpoint, .step = 7, .text = "x/step-7", .seconds = 1.5, .bytes = 2048});
      sink.event({.kind = EventKind::warn, .step = 8, .text = "loss is high"});
    });
  });
  EXPECT_EQ(without_time(out), " checkpoint at iteration 7 | x/step-7 | 2.00 KiB | 1.5s\n");
  EXPECT_NE(log.find("step 8: loss is high"), std::string::npos) << log;
}

TEST(Console, IntervalBelowOneIsRefused) {
  try {
    ConsoleSink sink({.log_interval = 0});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("log interval: expected at least 1 step, got 0"), std::string::npos);
  }
}

TEST(Console, FullDiskOnStdoutWarnsOnceAndTrainingContinues) {
  const Fd full(::open("/dev/full", O_WRONLY));
  ASSERT_TRUE(full);
  const std::string log = stderr_of([&] {
    ConsoleSink sink({.log_interval = 1, .progress = Progress::off, .out_fd = full.get()});
    for (int64_t s = 1; s <= 4; ++s) EXPECT_NO_THROW(sink.step(example(s)));
  });
  EXPECT_EQ(count_of(log, "standard output cannot be written: No space left on device"), 1) << log;
}

// After Ctrl-S the terminal accepts no output until Ctrl-Q.
TEST(Console, StoppedTerminalDoesNotBlockTraining) {
  Terminal terminal(200);
  const StderrTo redirect(terminal.fd());
  ASSERT_EQ(::tcflow(terminal.fd(), TCOOFF), 0);
  const auto begin = std::chrono::steady_clock::now();
  {
    ConsoleSink sink({.log_interval = 1, .progress = Progress::on, .out_fd = terminal.fd(), .bar_fd = terminal.fd()});
    for (int64_t s = 1; s <= 1000; ++s) sink.step(example(s));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5 * Output::kWait);
    ASSERT_EQ(::tcflow(terminal.fd(), TCOON), 0);
    for (int64_t s = 1001; s <= 1300; ++s) {
      terminal.drain();
      sink.step(example(s));
    }
  }
  terminal.drain();
  EXPECT_NE(terminal.raw().find(" iteration        1/"), std::string::npos) << "text that waited is not lost";
  EXPECT_NE(terminal.raw().find(" iteration     1300/"), std::string::npos);
}

// ---- the bar ----

BarState state(int64_t step) {
  BarState s{.step = step, .total_steps = 19073, .loss = 3.2811, .tokens_per_second = 1.27e6, .eta_seconds = 7860};
  for (int i = 0; i < 40; ++i) s.losses.push_back(11 * std::exp(-i / 10.0));
  return s;
}

TEST(Bar, ShowsStepLossSpeedAndEta) {
  EXPECT_EQ(render_bar(state(9540), 200, false),
            "9540/19073  loss 3.281  ETA 2h11m  ########........  1.27M tok/s  ##*++=~~~---....________");
  EXPECT_NE(render_bar(state(9540), 200, true).find("\u2588\u2588\u2591"), std::string::npos);
}

// At any width nothing wraps and every field is shown in full or not at all.
TEST(Bar, FitsEveryWidth) {
  for (bool unicode : {false, true})
    for (int columns = 0; columns < 140; ++columns) {
      const std::string line = render_bar(state(123), columns, unicode);
      int cells = 0;
      for (char c : line) cells += (c & 0xC0) != 0x80;
      EXPECT_LE(cells, columns);
      EXPECT_TRUE(columns < 9 || line.starts_with("123/19073")) << line;
      EXPECT_EQ(line.find("loss") != std::string::npos, line.find("loss 3.281") != std::string::npos) << line;
    }
}

TEST(Bar, HandlesNonFiniteAndOutOfRangeValues) {
  BarState s{.step = 7, .total_steps = 0, .loss = std::nan(""), .tokens_per_second = INFINITY, .eta_seconds = -1};
  s.losses = {1, std::nan(""), INFINITY, 1};
  EXPECT_EQ(render_bar(s, 200, false), "7/0  loss nan  ETA -1.0s  ................  - tok/s  _!!_");
  s.step = 9, s.total_steps = 3;
  EXPECT_NE(render_bar(s, 200, false).find("################"), std::string::npos) << "beyond the end: full";
}

TEST(Bar, IsShownOnlyOnATerminal) {
  const Terminal terminal(80);
  const TempDir dir;
  const int file = ::open((dir / "f").c_str(), O_CREAT | O_WRONLY, 0600);
  const ScopedVariable no_color("NO_COLOR", nullptr), ci("CI", nullptr), term("TERM", "xterm");
  EXPECT_TRUE(wants_bar(Progress::automatic, terminal.fd()));
  EXPECT_FALSE(wants_bar(Progress::automatic, file)) << "not a terminal";
  EXPECT_FALSE(wants_bar(Progress::off, terminal.fd()));
  EXPECT_TRUE(wants_bar(Progress::on, file)) << "asked for";
  for (const auto& [name, value] : {std::pair{"NO_COLOR", "1"}, {"CI", "true"}, {"TERM", "dumb"}, {"TERM", ""}}) {
    const ScopedVariable set(name, value);
    EXPECT_FALSE(wants_bar(Progress::automatic, terminal.fd())) << name << "=" << value;
  }
  ::close(file);
}

TEST(Bar, RedrawsAtMostTenTimesASecond) {
  Terminal terminal(80);
  const auto begin = std::chrono::steady_clock::now(), end = begin + std::chrono::milliseconds(250);
  {
    ProgressBar bar(terminal.fd());
    for (int64_t s = 1; std::chrono::steady_clock::now() < end; ++s) bar.update(state(s));
    const auto elapsed = std::chrono::steady_clock::now() - begin;  // on an idle machine 250 ms
    terminal.drain();
    const int draws = count_of(terminal.raw(), "/19073");
    EXPECT_GE(draws, 1);
    EXPECT_LE(draws, 1 + elapsed / ProgressBar::kInterval) << "at 0, 100 and 200 ms";
  }
  EXPECT_EQ(terminal.screen(), std::vector<std::string>{""}) << "gone at the end";
}

TEST(Bar, FollowsTheWidthOfTheTerminal) {
  Terminal terminal(30);
  ProgressBar bar(terminal.fd());
  bar.update(state(5));
  ASSERT_EQ(terminal.screen().size(), 1u) << "no wrapping";
  EXPECT_EQ(terminal.screen()[0], "5/19073  loss 3.281");
  terminal.resize(60);
  std::this_thread::sleep_for(ProgressBar::kInterval);
  bar.update(state(6));
  EXPECT_TRUE(terminal.screen()[0].starts_with("6/19073  loss 3.281  ETA 2h11m  ")) << terminal.screen()[0];
}

// Run lines on stdout, log lines on stderr and the bar, all on one terminal: every line is printed intact.
TEST(Bar, LinesAndBarDoNotInterleave) {
  Terminal terminal(500);
  {
    const StderrTo redirect(terminal.fd());
    ConsoleSink sink({.log_interval = 2, .progress = Progress::on, .out_fd = terminal.fd(), .bar_fd = terminal.fd()});
    for (int64_t s = 1; s <= 6; ++s) {
      sink.step(example(s));
      terminal.drain();
      log::info("short ", s);
      EXPECT_TRUE(terminal.screen().back().starts_with(cat(s, "/500000  loss")))
          << "the bar is back: " << terminal.screen().back();
    }
  }
  const auto lines = terminal.screen();
  ASSERT_EQ(lines.size(), 6u + 3 + 1);
  int run = 0, logged = 0;
  for (const std::string& line : lines) {
    if (std::regex_match(line, std::regex(R"( \[[^\]]*\] iteration .* grad norm z: -0\.30 \|)"))) ++run;
    if (std::regex_match(line, std::regex(R"(\d{4}-.* short \d)"))) ++logged;
  }
  EXPECT_EQ(run, 3);
  EXPECT_EQ(logged, 6);
  EXPECT_EQ(lines.back(), "") << "the bar is gone";
}

TEST(Bar, SurvivesConcurrentLogging) {
  const TempDir dir;
  const int file = ::open((dir / "err").c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  {
    const StderrTo redirect(file);
    ProgressBar bar(file);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 100; ++i) log::info("from a thread");
      });
    for (int64_t s = 0; s < 1000; ++s) bar.update(state(s));
    for (auto& t : threads) t.join();
  }
  ::close(file);
  const std::string text = read_bytes(dir / "err");
  EXPECT_EQ(count_of(text, "from a thread\n"), 300);
  EXPECT_TRUE(text.ends_with("\r\x1b[K"));
  // The bar was erased before every log line: the text between two lines is empty or ends with the erase sequence.
  EXPECT_FALSE(std::regex_search(text, std::regex(R"(tok/s[^\r\n]*\x1b\[K\d{4}-)")));
}

}  // namespace
}  // namespace athanor
