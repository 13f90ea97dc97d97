// Output waits for no reader: not for a full pipe, a full socket or a held terminal.
#include "base/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/error.h"

namespace athanor {
namespace {

using Clock = std::chrono::steady_clock;

struct Ends {
  Fd read, write;
};
Ends make_pipe() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  ::fcntl(ends[1], F_SETPIPE_SZ, 4096);
  return {Fd(ends[0]), Fd(ends[1])};
}
Ends make_sockets() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string read_what_is_there(const Fd& from) {
  ::fcntl(from.get(), F_SETFL, O_NONBLOCK);
  std::string text;
  std::array<char, 65536> bytes{};
  for (ssize_t n; (n = ::read(from.get(), bytes.data(), bytes.size())) > 0;) text.append(bytes.data(), size_t(n));
  return text;
}

class EveryKind : public testing::TestWithParam<Ends (*)()> {};
INSTANTIATE_TEST_SUITE_P(Output, EveryKind, testing::Values(make_pipe, make_sockets),
                         [](const auto& kind) { return kind.param == make_pipe ? "Pipe" : "Socket"; });

TEST_P(EveryKind, WriterDoesNotBlockWithoutAReaderAndKeepsTheOrder) {
  const Ends ends = GetParam()();
  const auto begin = Clock::now();
  constexpr int kLines = 5000, kLater = 200;
  std::string got;
  {
    Output out(ends.write.get());
    const std::string rest(200, '.');
    for (int i = 0; i < kLines; ++i) EXPECT_EQ(out.write(cat("line ", i, " ", rest, "\n")), 0);
    EXPECT_LT(Clock::now() - begin, 8 * Output::kWait) << "one wait, not one for each line";
    for (int i = 0; i < kLater; ++i) {
      got += read_what_is_there(ends.read);
      out.write("later\n");
    }
    got += read_what_is_there(ends.read);
  }
  int next = 0, later = 0;
  while (got.find(cat("line ", next, " ")) != std::string::npos) ++next;
  for (size_t at = 0; (at = got.find("later\n", at)) != std::string::npos; ++at) ++later;
  const size_t left_out = got.find(cat("[", kLines - next + kLater - later, " lines were dropped"));
  EXPECT_GT(next, 1000) << "the first lines are kept";
  EXPECT_LT(next, kLines) << "memory is bounded";
  EXPECT_NE(left_out, std::string::npos) << "whoever reads again learns what is missing";
  EXPECT_GT(got.find("later\n"), left_out);
}

TEST_P(EveryKind, FileDescriptionStaysBlocking) {
  const Ends ends = GetParam()();
  Output out(ends.write.get());
  EXPECT_EQ(out.write("text"), 0);
  EXPECT_EQ(::fcntl(ends.write.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_EQ(read_what_is_there(ends.read), "text");
}

TEST(Output, OfferIsDroppedIfTheStreamIsNotReady) {
  const Ends ends = make_pipe();
  Output out(ends.write.get());
  out.write(std::string(5000, 'x'));  // more than the pipe holds
  const auto begin = Clock::now();
  out.offer("bar");
  EXPECT_LT(Clock::now() - begin, Output::kWait / 2);
  EXPECT_EQ(read_what_is_there(ends.read), std::string(4096, 'x'));
  out.offer("bar");
  EXPECT_EQ(read_what_is_there(ends.read), std::string(904, 'x') + "bar");
}

TEST(Output, FailuresAreReported) {
  const Fd full(::open("/dev/full", O_WRONLY));
  EXPECT_EQ(Output(full.get()).write("text"), ENOSPC);
  const Fd unwritable(::open("/dev/null", O_RDONLY));
  EXPECT_EQ(Output(unwritable.get()).write("text"), EBADF);
}

}  // namespace
}  // namespace athanor
