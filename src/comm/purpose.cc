#include "comm/purpose.h"

namespace lockstep::comm {

namespace {

thread_local const Purpose* outermost = nullptr;

}  // namespace

Purpose::Purpose(const void* subject, Text text) : subject_(subject), text_(text) {
  if (outermost == nullptr) outermost = this;
}

Purpose::~Purpose() {
  if (outermost == this) outermost = nullptr;
}

std::string Purpose::before(const std::string& message) {
  if (outermost == nullptr) return message;
  return outermost->text_(outermost->subject_) + ": " + message;
}

}  // namespace lockstep::comm
