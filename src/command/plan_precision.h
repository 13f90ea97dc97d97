// What 8 or 4 bits are worth to the linear layers of a planned model, by the modelled step: for each kind of layer the
// step with its layers in bf16 instead, and which of them are faster so. Nothing is timed.
#pragma once
#include <string>

namespace athanor {

class Engine;
struct Backend;
struct Roofline;

// Some lines, one for each kind of layer in 8 or 4 bits, with a pattern for fp8_exclude; empty where products of codes
// are emulated, which are slower anyway. Plans with the engine's micro-batch and recomputation.
std::string precision_text(Engine&, Backend, const Roofline&);

}  // namespace athanor
