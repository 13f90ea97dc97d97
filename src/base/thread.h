// Starts threads; if the system refuses, throws an Error with the limits that may be the cause.
#pragma once
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace athanor {

// Most threads that an option accepts: the CPUs that Linux supports on x86-64.
inline constexpr int kMostThreads = 8192;

// Limits of this process: "4096 processes and threads of this user (ulimit -u), 512 of this cgroup
// (pids.max), ...".
std::string thread_limits();

// what: the thread's work, for the message.
template <class Thread = std::thread, class Fn>
Thread start_thread(std::string_view what, Fn&& fn) {
  try {
    return Thread(std::forward<Fn>(fn));
  } catch (const std::system_error& e) {
    throw Error(cat("a thread for ", what, " cannot be started: ", e.code().message(), "; the limits are ",
                    thread_limits(), ": raise the one that is reached, or end other programs"));
  }
}

}  // namespace athanor
