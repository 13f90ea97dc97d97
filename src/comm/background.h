// A communicator over host memory whose all-reduces and all-gathers run on a thread, one after the other, while the
// caller computes and makes calls of other communicators. The rest of the calls is not supported.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace athanor {

// `group` must share no wire with communicators that other threads use. The destructor waits for the calls that were
// started; tensors of a call must live and stay unchanged until Communicator::finish_calls() has returned.
std::unique_ptr<Communicator> make_background(std::unique_ptr<Communicator> group);

}  // namespace athanor
