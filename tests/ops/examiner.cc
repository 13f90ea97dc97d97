// The judgements of the Examiner; everything here is free of op types.
#include "tests/ops/examiner.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/compare.h"
#include "reference/reference_ops.h"
#include "tests/ops/guarded.h"
#include "tests/ops/host_device.h"

namespace athanor {
namespace {

std::vector<std::byte> encoded(const Tensor& like, const Init& value, uint64_t stream) {
  std::vector<std::byte> out(like.bytes());
  const auto put = [&]<class T>(int64_t i, T x) { std::memcpy(out.data() + size_t(i) * sizeof x, &x, sizeof x); };
  for (int64_t i = 0; i < like.numel(); ++i) {
    const double x = value(stream, i);
    switch (like.dtype) {
      case DType::f64:
        put(i, x);
        break;
      case DType::i64:
        put(i, int64_t(x));
        break;
      case DType::i32:
        put(i, int32_t(x));
        break;
      case DType::i16:
        put(i, int16_t(x));
        break;
      case DType::u8:
        put(i, uint8_t(x));
        break;
      case DType::f8_e8m0:
        put(i, as_e8m0(std::bit_cast<float>(std::bit_cast<uint32_t>(float(x)) & 0x7f800000u)));
        break;
      case DType::f8_e4m3:
      case DType::f8_e5m2:
      case DType::f4_e2m1:
        by_code(like.dtype, [&]<class T>() { put(i, from_float<T>(float(x))); });
        break;
      default:
        by_float(like.dtype, [&]<class T>() { put(i, from_float<T>(float(x))); });
    }
  }
  return out;
}

// A NaN in every float dtype (16-bit words 0xffXX), another one for another salt. Codes: the NaN that no op writes.
std::vector<std::byte> poison(size_t bytes, uint32_t salt, bool quantized = false) {
  std::vector<std::byte> out(bytes, std::byte{0xff});
  if (quantized) return out;
  for (size_t i = 0; i < bytes; i += 2) out[i] = std::byte(uint8_t(0xa0 + salt % 8));
  return out;
}

int64_t first_unwritten(const Result& r, uint32_t salt) {
  const size_t size = size_of(r.like.dtype);
  const auto mark = poison(size, salt, is_code(r.like.dtype));
  if (size < 2 && !is_code(r.like.dtype)) return -1;  // a single byte proves nothing
  for (size_t i = 0; i < r.after.size() / size; ++i)
    if (std::memcmp(r.after.data() + i * size, mark.data(), size) == 0) return int64_t(i);
  return -1;
}

Tensor as_tensor(const Result& r, const std::vector<std::byte>& bytes) {
  return {const_cast<std::byte*>(bytes.data()), r.like.dtype, r.like.shape};
}

}  // namespace

const char* name_of(Fault f) {
  constexpr const char* kNames[] = {"wrong value",    "written out of bounds",    "left unwritten", "modified input",
                                    "irreproducible", "depends on thread number", "wrong gradient", "threw"};
  return kNames[int(f)];
}

std::vector<double> decoded(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> out(bytes.size() / size_of(dtype));
  by_float(dtype, [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) {
      T x;
      std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
      out[i] = double(to_float(x));
    }
  });
  return out;
}

const Result& result(const std::vector<Result>& results, const std::string& tensor) {
  for (const Result& r : results)
    if (r.name == tensor) return r;
  throw Error(cat("the case has no tensor ", tensor));
}

Examiner::Examiner(const MakeBackend& make, Options options) : options_(std::move(options)) {
  reference_ = {std::make_shared<HostDevice>(),
                options_.reference ? options_.reference : std::shared_ptr<Ops>(make_reference())};
  for (int threads : options_.threads) backends_.push_back(make(threads));
}

void Examiner::note(Finding f) { findings_.push_back(std::move(f)); }

void Examiner::guard(const char* op, const std::string& name, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    note({Fault::threw, op, "", cat(name, ": ", e.what())});
  }
}

Examiner::Outcome Examiner::run_guarded(const char* op, std::span<const Field> fields, const Values& values,
                                        const Shared& shared, Device& device, uint32_t salt, size_t scratch_bytes,
                                        const std::function<void(void*)>& run) {
  Outcome out{op, {}, {}};
  std::map<std::string, std::unique_ptr<Guarded>> memory;  // by the name of the result
  std::map<std::string, int> of_name;                      // tensors so far: an op over a list has several
  for (const Field& f : fields) {
    if (!*f.t || shared.count(f.name)) continue;
    const auto value = values.find(f.name);
    auto m = std::make_unique<Guarded>(device, *f.t, salt);
    const int number = ++of_name[f.name];
    out.results.push_back({number == 1 ? f.name : cat(f.name, " ", number), f.io, *f.t, {}, {}});
    Result& r = out.results.back();
    r.before = f.io == Io::out ? poison(f.t->bytes(), salt, is_code(f.t->dtype))
                               : encoded(*f.t, value == values.end() ? normal() : value->second, stream_of(r.name));
    m->write(r.before);
    *f.t = m->tensor();
    memory[r.name] = std::move(m);
  }
  for (const Field& f : fields)
    if (const auto s = shared.find(f.name); *f.t && s != shared.end()) f.t->data = memory.at(s->second)->tensor().data;

  Guarded scratch(device, tensor(DType::u8, {int64_t(scratch_bytes)}), salt);
  scratch.write(poison(scratch_bytes, salt));
  run(scratch.tensor().data);
  device.sync();

  scratch.read();
  if (const auto at = scratch.damage()) out.faults.push_back({Fault::out_of_bounds, op, "scratch", cat("byte ", *at)});
  for (Result& r : out.results) {
    r.after = memory.at(r.name)->read();
    const bool lent = std::any_of(shared.begin(), shared.end(), [&](const auto& s) { return s.second == r.name; });
    if (const auto at = memory.at(r.name)->damage())
      out.faults.push_back({Fault::out_of_bounds, op, r.name, cat("byte ", *at, " from the data")});
    if (r.io == Io::in && !lent && r.before != r.after) out.faults.push_back({Fault::modified_input, op, r.name, ""});
    if (r.io == Io::out)
      if (const int64_t at = first_unwritten(r, salt); at >= 0)
        out.faults.push_back({Fault::unwritten, op, r.name, cat("element ", at)});
  }
  for (const auto& [output, input] : shared) {
    Result r = result(out.results, input);
    r.name = output;
    r.io = Io::out;
    out.results.push_back(r);
  }
  return out;
}

namespace {

// The first element that is further off than a tolerance allows; all of them are near where only their sum is not.
std::string first_wrong(const Result& got, const Result& want, bool exact, const Tolerance& tolerance) {
  const DType dtype = want.like.dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) return "an element is wrong";
  const std::vector<double> a = decoded(dtype, got.after), b = decoded(dtype, want.after);
  double power = 0;
  for (const double x : b) power += std::isfinite(x) ? x * x : 0;
  const double most = exact ? 0 : tolerance.peak * std::sqrt(power / double(b.size()));
  for (size_t i = 0; i < b.size(); ++i)
    if (a[i] != b[i] && !(std::abs(a[i] - b[i]) <= most + (exact ? 0 : rounding(dtype) * std::abs(b[i]))) &&
        !(std::isnan(a[i]) && std::isnan(b[i])))
      return cat("first wrong is element ", i, " (", a[i], ", reference ", b[i], ")");
  return "no element by itself is wrong";
}

}  // namespace

void Examiner::judge(const std::string& name, bool exact, const Outcome& got, const Outcome& want,
                     const Tolerances& tolerances) {
  for (Finding f : got.faults) {
    f.detail = cat(name, ": ", f.detail);
    note(f);
  }
  for (const Result& w : want.results) {
    if (w.io == Io::in) continue;
    const Result& g = result(got.results, w.name);
    const Difference d = compare(as_tensor(w, g.after), as_tensor(w, w.after));
    const Tolerance tolerance = tolerances(w.like.dtype);
    if (exact ? g.after != w.after : !d.within(tolerance))
      note({Fault::wrong_value, got.op, w.name,
            cat(name, ", seed ", kCaseSeed, ": ", first_wrong(g, w, exact, tolerance), "; worst is element ", d.at,
                ": ", d.got, ", reference ", d.want, " (nmse ", d.nmse, ", peak ", d.peak, ")")});
  }
}

void Examiner::judge_same(Fault fault, const std::string& name, const Outcome& a, const Outcome& b) {
  for (Finding f : b.faults) {
    f.detail = cat(name, ": ", f.detail);
    note(f);
  }
  for (const Result& r : a.results)
    if (r.io != Io::in && r.after != result(b.results, r.name).after) {
      const Difference d = compare(as_tensor(r, result(b.results, r.name).after), as_tensor(r, r.after));
      note({fault, a.op, r.name, cat(name, ": element ", d.at, " is ", d.got, ", was ", d.want)});
    }
}

void Examiner::adopt_one(Values& values, const char* tensor, const std::vector<Result>& forward,
                         const Pairs& upstream) {
  const bool is_upstream =
      std::any_of(upstream.begin(), upstream.end(), [&](const auto& pair) { return pair.second == tensor; });
  if (values.count(tensor) || is_upstream) return;
  for (const Result& r : forward)
    if (r.name == tensor && r.like.dtype != DType::i32) values[tensor] = listed(decoded(r.like.dtype, r.after));
}

double Examiner::projection(const std::vector<Result>& forward, const Pairs& upstream,
                            const std::vector<Result>& backward) {
  double sum = 0;
  for (const auto& [from, to] : upstream) {
    const Result &y = result(forward, from), &dy = result(backward, to);
    const auto a = decoded(y.like.dtype, y.after), b = decoded(dy.like.dtype, dy.before);
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  }
  return sum;
}

std::vector<double> Examiner::value_before(const std::vector<Result>& results, const std::string& tensor) {
  const Result& r = result(results, tensor);
  return decoded(r.like.dtype, r.before);
}

std::vector<double> Examiner::gained(const std::vector<Result>& backward, const std::string& tensor,
                                     const Pairs& upstream) {
  const Result& r = result(backward, tensor);
  auto after = decoded(r.like.dtype, r.after);
  const bool carries_upstream =
      std::any_of(upstream.begin(), upstream.end(), [&](const auto& pair) { return pair.second == tensor; });
  if (r.io != Io::inout || carries_upstream) return after;
  const auto before = decoded(r.like.dtype, r.before);
  for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
  return after;
}

// Central differences of fourth order, along axes spread over the tensor and along two random directions, which no
// element escapes. In f32 with this step truncation and rounding both stay near 1e-5.
void Examiner::judge_gradient(const char* op, const std::string& name, const std::string& tensor,
                              const std::function<double(const std::vector<double>&)>& loss,
                              const std::vector<double>& x, const std::vector<double>& analytic) {
  constexpr double kStep = 0x1p-5, kTolerance = 1e-3;
  constexpr size_t kAxes = 40, kDirections = 2;
  const size_t n = x.size(), axes = std::min(n, kAxes);
  double power = 0;
  for (double a : analytic) power += a * a;
  const double rms = std::sqrt(power / double(n));
  for (size_t k = 0; k < axes + kDirections; ++k) {
    std::vector<double> direction(n);  // unit vector
    if (k < axes) direction[k * n / axes] = 1;
    for (size_t i = 0; k >= axes && i < n; ++i)
      direction[i] = (random_bits(kCaseSeed, k, i) & 1 ? 1 : -1) / std::sqrt(double(n));
    double expected = 0;
    for (size_t i = 0; i < n; ++i) expected += analytic[i] * direction[i];
    const auto moved = [&](double by) {
      auto there = x;
      for (size_t i = 0; i < n; ++i) there[i] += by * direction[i];
      return loss(there);
    };
    const double numeric = (8 * (moved(kStep) - moved(-kStep)) - (moved(2 * kStep) - moved(-2 * kStep))) / (12 * kStep);
    if (!(std::abs(numeric - expected) <= kTolerance * std::max(rms, std::abs(numeric))))  // also NaN
      return note({Fault::gradient, op, tensor,
                   cat(name, ": along ", k < axes ? cat("element ", k * n / axes) : "a random direction", " it is ",
                       expected, ", differences give ", numeric, ", rms ", rms)});
  }
}

std::string Examiner::report() const {
  std::string text = cat(findings_.size(), " findings in ", cases_, " cases\n");
  for (size_t i = 0; i < findings_.size() && i < 40; ++i) {
    const Finding& f = findings_[i];
    text += cat("  ", f.op, ".", f.tensor, " ", name_of(f.fault), " [", f.detail, "]\n");
  }
  return text;
}

}  // namespace athanor
