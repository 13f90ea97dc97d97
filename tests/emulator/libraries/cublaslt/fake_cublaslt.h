// A cuBLASLt that computes on emulated device memory and refuses what the real one's documentation does not allow; the
// refusal says which rule was broken. Compared with the installed library where that works without a GPU
// (descriptors). Not emulated, and refused by name: what the program does not ask for, such as batches,
// row-major matrices, fp64, results in FP8 and epilogues with ReLU.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "../element.h"
#include "../fake_library.h"
#include "cuda/libraries/cublaslt_table.h"

namespace emu::fakes {

struct Product;

class FakeCublasLt {
 public:
  explicit FakeCublasLt(Machine machine);
  ~FakeCublasLt();

  athanor::CublasLtTable table() const;

  std::string last_refusal() const { return refusals_.last(); }
  // How long products take on the virtual clock, in microseconds; nullptr: all the same time.
  using Time = std::function<double(const cublasLtMatmulAlgo_t&, uint32_t epilogue)>;
  void set_time(Time time) { time_ = std::move(time); }
  const Time& time() const { return time_; }
  // Products that the library has no algorithm for, beyond what it documents: those that get a reason; nullptr: none.
  using Lacks = std::function<std::string(const Product&)>;
  void set_lacks(Lacks lacks) { lacks_ = std::move(lacks); }
  const Lacks& lacks() const { return lacks_; }
  // Handles and descriptors that were made and never destroyed.
  std::vector<std::string> leaks() const;

  // For the functions of the table.
  const Machine& machine() const { return machine_; }
  cublasStatus_t refuse(cublasStatus_t status, const std::string& why);
  void made(const void* object, std::string_view kind);
  bool lives(const void* object, std::string_view kind) const;
  bool destroy(const void* object, std::string_view kind);  // false: no such object

 private:
  Machine machine_;
  Refusals refusals_;
  Time time_;
  Lacks lacks_;
  mutable std::mutex mutex_;
  std::map<const void*, std::string_view> objects_;
  Installed<FakeCublasLt> installed_;
};

}  // namespace emu::fakes
