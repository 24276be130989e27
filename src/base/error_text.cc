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
  // std::strerror is not thread-safe; generic_category's message is.
  return fmt::format("{} (errno {})", std::generic_category().message(error_number), error_number);
}

void throw_kind(std::string_view kind, const std::string& message) {
  if (kind == "UsageError") throw UsageError(message);
  if (kind == "MismatchError") throw MismatchError(message);
  if (kind == "PeerLostError") throw PeerLostError(message);
  if (kind == "TimeoutError") throw TimeoutError(message);
  if (kind == "SnapshotError") throw SnapshotError(message);
  if (kind == "SystemError") throw SystemError(message);
  throw Error(message);
}

}  // namespace lockstep::base
