#include "comm/communicator.h"

#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

thread_local std::string subject;

}  // namespace

CollectiveSubject::CollectiveSubject(std::string what) : outer_(std::exchange(subject, std::move(what))) {}

CollectiveSubject::~CollectiveSubject() { subject = std::move(outer_); }

std::string CollectiveSubject::words() { return subject.empty() ? "" : cat(" for ", subject); }

}  // namespace athanor
