#include "base/error_text.h"

#include <fmt/format.h>
#include <system_error>

#include <lockstep/error.h>

namespace lockstep::base {

std::string compose(const ErrorText& text) {
  std::string message = text.what;
  if (!text.where.empty()) message += fmt::format(" ({})", text.where);
  if (!text.evidence.empty()) message += ": " + text.evidence;
  if (!text.hint.empty()) message += "\nhint: " + text.hint;
  return message;
}

std::string errno_text(int error_number) {
  // std::strerror is not thread-safe, generic_category().message() is.
  return fmt::format("{} (errno {})", std::generic_category().message(error_number), error_number);
}

void throw_kind(std::string_view kind, const std::string& message, const std::vector<int>& culprits) {
  if (kind == "UsageError") throw UsageError(message, culprits);
  if (kind == "MismatchError") throw MismatchError(message, culprits);
  if (kind == "PeerLostError") throw PeerLostError(message, culprits);
  if (kind == "TimeoutError") throw TimeoutError(message, culprits);
  if (kind == "SnapshotError") throw SnapshotError(message, culprits);
  if (kind == "SystemError") throw SystemError(message, culprits);
  throw Error(message, culprits);
}

}  // namespace lockstep::base
