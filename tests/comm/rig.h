// Ranks as threads of this process, with a rendezvous each, for tests.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/crypto.h"
#include "comm/rendezvous.h"
#include "tests/patiently.h"

namespace athanor::testing {

constexpr double kAmple = 120;  // seconds, for operations that are expected to succeed

// A port that was free a moment ago.
inline int free_port() { return port_of(*listen_on("127.0.0.1", 0)); }

struct Setting {
  int ranks = 3, port = free_port();
  double timeout = kAmple;
  Timeouts timeouts = {.startup = kAmple, .step = kAmple, .evaluation = kAmple, .saving = kAmple, .silence = kAmple};
  std::string host = "127.0.0.1";
  int hasty = -1;  // rank that uses of_hasty instead of timeouts
  Timeouts of_hasty = {};
  int absent = -1;                                // rank that never connects
  int fan_out = kFanOut;                          // fan-out of the tree of ranks
  std::string secret = to_hex(random_bytes(16));  // other jobs on these ports have another secret
};

inline RendezvousOptions options(const Setting& s, int rank) {
  return {.ranks = {.rank = rank, .world = s.ranks, .launcher = "test", .host = s.host, .port = s.port},
          .key =
              [secret = s.secret] {
                return JobKey{secret, 0};
              },
          .listening = {},
          .timeout = s.timeout,
          .timeouts = rank == s.hasty ? s.of_hasty : s.timeouts,
          .last_resort = {},
          .fan_out = s.fan_out};
}

// Runs body on a thread per rank; the errors of all, "" where there was none.
inline std::vector<std::string> run(const Setting& s, const std::function<void(Rendezvous&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(s.ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < s.ranks; ++r)
    if (r != s.absent)
      threads.emplace_back([&, r] {
        try {
          Rendezvous rendezvous(options(s, r));
          body(rendezvous);
        } catch (const Error& e) {
          errors[size_t(r)] = cat(int(e.code()), " ", e.what());
        }
      });
  for (std::thread& t : threads) t.join();
  return errors;
}

inline void expect_all(const std::vector<std::string>& errors, const std::string& part, int except = -1) {
  for (int r = 0; r < int(errors.size()); ++r)
    if (r != except) {
      EXPECT_NE(errors[size_t(r)].find(part), std::string::npos) << r << ": " << errors[size_t(r)];
    }
}

// Runs `work` on this rank and, like the program, reports its error to the other ranks before the rank leaves: without
// the report the others only see that the connection ended. For the body of run().
inline void reporting_errors(Rendezvous& rendezvous, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    throw rendezvous.first_error(e);
  }
}

// True if the errors of all ranks except `except` contain `part`; prints those that do not. For use in patiently().
inline bool all_say(const std::vector<std::string>& errors, const std::string& part, int except = -1) {
  for (int r = 0; r < int(errors.size()); ++r) {
    if (r == except || errors[size_t(r)].find(part) != std::string::npos) continue;
    std::printf("rank %d does not say \"%s\": %s\n", r, part.c_str(), errors[size_t(r)].c_str());
    return false;
  }
  return true;
}

// True if no rank failed; prints the errors of those that did. For use in patiently().
inline bool all_well(const std::vector<std::string>& errors) {
  for (size_t r = 0; r < errors.size(); ++r)
    if (!errors[r].empty()) std::printf("rank %zu says: %s\n", r, errors[r].c_str());
  return errors == std::vector<std::string>(errors.size());
}

inline void expect_none(const std::vector<std::string>& errors) {
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
}

}  // namespace athanor::testing
