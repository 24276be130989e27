// Floating-point numbers in a snapshot's JSON: the options of optimizers, the counters of schedulers, the
// user's own values.
//
// A finite number is a JSON number. JSON has no infinity and no NaN, so these are objects, which cannot be
// confused with a text of the user: {"double": "inf"}, "-inf", "nan", "-nan", or the bits of any other NaN:
// {"double": "0x7ff8000000000abc"}. No bit is lost.
//
// Older builds wrote such an option or counter as the bare text of its bits: "0x7ff0000000000000". Readers
// still accept it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep::snapshot {

nlohmann::json number_to_json(double number);

// Returns nothing if `saved` is not a number in one of the forms above.
std::optional<double> number_from_json(const nlohmann::json& saved);

// Formats a stored value for humans: inf, 0.1, true, "strong_wolfe".
std::string readable(const nlohmann::json& saved);

}  // namespace lockstep::snapshot
