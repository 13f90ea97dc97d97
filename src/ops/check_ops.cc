// The records and the report of CheckOps.
#include "ops/check_ops.h"

#include <algorithm>
#include <cmath>
#include <iomanip>

namespace athanor {

Tensor CheckOps::copy_of(const Tensor& t, std::vector<std::max_align_t>& memory) {
  const int64_t elements = t.contiguous() || t.rows() == 0 ? t.numel() : (t.rows() - 1) * t.row_stride + t.cols();
  const size_t bytes = size_t(elements) * size_of(t.dtype);
  memory.resize(blocks(bytes));
  device_.copy(memory.data(), t.data, bytes, Stream::compute);
  device_.sync();
  Tensor copy = t;
  copy.data = memory.data();
  return copy;
}

float CheckOps::amax_of(const Tensor& t) {
  float most = 0;
  by_float(t.dtype, [&]<class T>() {
    for (int64_t i = 0; i < t.numel(); ++i) {
      const float x = std::abs(to_float(t.as<T>()[i]));
      if (!std::isnan(most) && !(x <= most)) most = x;  // NaN counts as the maximum
    }
  });
  return most;
}

void CheckOps::note(const char* op, const char* tensor, const Tensor& got, const Tensor& want, const Allowed& allowed) {
  auto w = std::find_if(worst_.begin(), worst_.end(),
                        [&](const Worst& x) { return x.op == op && x.tensor == tensor && x.dtype == want.dtype; });
  if (w == worst_.end()) w = worst_.insert(w, {.op = op, .tensor = tensor, .dtype = want.dtype});
  const Difference d = compare(got, want, allowed.scale);
  ++w->launches;
  if (!d.within(allowed.tolerance)) ++w->failures;
  if (d.nmse > w->nmse.nmse) w->nmse = d;
  if (d.peak > w->peak.peak || w->launches == 1) {
    w->peak = d;
    w->peak_launch = launches_;
    w->peak_shape = want.shape;
  }
}

bool CheckOps::passed() const {
  return std::all_of(worst_.begin(), worst_.end(), [](const Worst& w) { return w.failures == 0; });
}

std::string CheckOps::report() const {
  std::ostringstream out;
  out << std::left << std::setw(16) << "op" << std::setw(10) << "tensor" << std::setw(7) << "dtype" << std::right
      << std::setw(9) << "launches" << std::setw(11) << "nmse" << std::setw(11) << "peak"
      << "  worst at\n";
  for (const Worst& w : worst_) {
    out << std::left << std::setw(16) << w.op << std::setw(10) << w.tensor << std::setw(7) << name_of(w.dtype)
        << std::right << std::setw(9) << w.launches << std::scientific << std::setprecision(1) << std::setw(11)
        << w.nmse.nmse << std::setw(11) << w.peak.peak << std::defaultfloat << std::setprecision(6);
    if (w.peak.peak > 0)
      out << "  launch " << w.peak_launch << " " << w.peak_shape << " element " << w.peak.at << ": " << w.peak.got
          << ", reference " << w.peak.want;
    if (w.failures) out << "  FAILED in " << w.failures << " launches";
    out << "\n";
  }
  return out.str();
}

}  // namespace athanor
