#include "comm/communicator.h"

#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

thread_local std::string subject;

}  // namespace

void Communicator::sum(Tensor x, Tensor, Stream stream) { all_reduce(x, Reduce::sum, stream); }
void Communicator::sum_scatter(Tensor shard, Tensor full, Tensor, Stream stream) {
  reduce_scatter(shard, full, Reduce::sum, stream);
}

CollectiveSubject::CollectiveSubject(std::string what) : outer_(std::exchange(subject, std::move(what))) {}

CollectiveSubject::~CollectiveSubject() { subject = std::move(outer_); }

const std::string& CollectiveSubject::name() { return subject; }

std::string CollectiveSubject::words() { return subject.empty() ? "" : cat(" for ", subject); }

}  // namespace athanor
