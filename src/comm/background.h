// A communicator over host memory whose all-reduces and all-gathers run on a thread, one after the other, while the
// caller computes and calls other communicators. Other collectives are not supported.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace athanor {

// `group` must share no wire with communicators that other threads use. The destructor waits for all calls that were
// started; tensors of a call must live and stay unchanged until Communicator::finish_calls() has returned.
std::unique_ptr<Communicator> make_background(std::unique_ptr<Communicator> group);

}  // namespace athanor
