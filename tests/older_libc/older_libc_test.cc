// Functions that programs linked with an older C library contain, here instead of this machine's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

namespace athanor {
namespace {

using namespace std::chrono_literals;

// The start of the loaded object that has this.
template <class T>
void* object_of(T* address) {
  Dl_info found{};
  return dladdr(reinterpret_cast<void*>(address), &found) ? found.dli_fbase : nullptr;
}

TEST(OlderLibc, ReplacementFunctionsAreLinked) {
  void* program = object_of(&object_of<int>);
  EXPECT_EQ(object_of(&arc4random), program);
  EXPECT_EQ(object_of(&_dl_find_object), program);
  EXPECT_EQ(object_of(&pthread_cond_clockwait), program);
  EXPECT_EQ(object_of(&__libc_single_threaded), program);
  EXPECT_EQ(object_of(static_cast<double (*)(double)>(std::exp)), program);
  EXPECT_NE(object_of(&getentropy), program);
}

TEST(OlderLibc, ExceptionsPassThroughLibraries) {
  const auto thrown = [](const std::string& what) {
    try {
      std::thread([] {}).join();
      throw std::runtime_error(what);
    } catch (const std::exception& e) {
      return std::string(e.what());
    }
  };
  EXPECT_EQ(thrown("here"), "here");
  EXPECT_THROW(std::stoi("none"), std::invalid_argument);  // from libstdc++
  dl_find_object found{};
  ASSERT_EQ(_dl_find_object(reinterpret_cast<void*>(&object_of<int>), &found), 0);
  EXPECT_LE(found.dlfo_map_start, reinterpret_cast<void*>(&object_of<int>));
  EXPECT_GT(found.dlfo_map_end, reinterpret_cast<void*>(&object_of<int>));
  EXPECT_NE(found.dlfo_eh_frame, nullptr);
  EXPECT_EQ(_dl_find_object(nullptr, &found), -1);
}

TEST(OlderLibc, ConditionVariablesWaitOnTheSteadyClock) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock lock(mutex);
  for (const auto wait : {0ms, 20ms, 1100ms}) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_FALSE(condition.wait_until(lock, begin + wait, [] { return false; }));
    EXPECT_GE(std::chrono::steady_clock::now() - begin, wait);
  }
  EXPECT_FALSE(condition.wait_until(lock, std::chrono::steady_clock::now() - 10s, [] { return false; })) << "long ago";
  bool told = false;
  std::thread teller([&] {
    const std::lock_guard hold(mutex);
    told = true;
    condition.notify_one();
  });
  EXPECT_TRUE(condition.wait_for(lock, 60s, [&] { return told; }));
  lock.unlock();
  teller.join();
}

TEST(OlderLibc, RandomNumbersDiffer) {
  std::random_device device;
  std::set<unsigned> seen;
  for (int i = 0; i < 100; ++i) seen.insert(device());
  EXPECT_GT(seen.size(), 90U);
}

// To the bit those of the versions that this machine's programs are linked with.
TEST(OlderLibc, FloatFunctionsMatchLibm) {
  void* libm = dlopen("libm.so.6", RTLD_NOW);
  ASSERT_NE(libm, nullptr);
  const auto expect_same = [&](const char* name, double (*ours)(double), double least, double most) {
    auto* newest = reinterpret_cast<double (*)(double)>(dlsym(libm, name));
    ASSERT_NE(newest, nullptr) << name;
    EXPECT_NE(newest, ours);
    for (int i = 0; i <= 1000; ++i) {
      const double x = least + (most - least) * i / 1000;
      EXPECT_EQ(newest(x), ours(x)) << name << " of " << x;
    }
    EXPECT_TRUE(std::isnan(ours(NAN))) << name;
  };
  expect_same("exp", static_cast<double (*)(double)>(std::exp), -800, 720);
  expect_same("exp2", static_cast<double (*)(double)>(std::exp2), -1100, 1030);
  expect_same("log", static_cast<double (*)(double)>(std::log), 0, 50);
  expect_same("log2", static_cast<double (*)(double)>(std::log2), 0, 50);
  auto* newest = reinterpret_cast<double (*)(double, double)>(dlsym(libm, "pow"));
  double (*ours)(double, double) = std::pow;
  for (int i = 0; i <= 1000; ++i) EXPECT_EQ(newest(0.01 * i, 0.37 * i), ours(0.01 * i, 0.37 * i)) << i;
  EXPECT_EQ(ours(-8, 3), -512);
}

}  // namespace
}  // namespace athanor
