// Speedup by FP8 or FP4 in the linear layers of a planned model, by the modelled step: for each kind of layer the step
// time with that kind in bf16 instead, and the kinds that are faster in bf16. Nothing is timed.
#pragma once
#include <string>

namespace athanor {

class Engine;
struct Backend;
struct Roofline;

// Returns one line per kind of FP8/FP4 layer, and a pattern for fp8.exclude; empty if FP8/FP4 GEMMs are emulated, which
// is slower anyway. Plans with the engine's micro-batch and recomputation.
std::string precision_text(Engine&, Backend, const Roofline&);

}  // namespace athanor
