// Floating-point numbers in a snapshot's JSON: the options of optimizers, the counters of schedulers, the
// user's own values.
//
// A finite number is a JSON number. JSON has no infinity and no NaN, so these are objects, which cannot be
// mistaken for a text of the user's: {"double": "inf"}, "-inf", "nan", "-nan", and the bits of any other NaN:
// {"double": "0x7ff8000000000abc"}. Every bit survives.
//
// Files of older builds hold such an option or counter as a bare text of its bits, "0x7ff0000000000000",
// which is still read.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace lockstep::snapshot {

nlohmann::json number_to_json(double number);

// Nothing if it is not a number in one of the forms above.
std::optional<double> number_from_json(const nlohmann::json& saved);

// A stored value for people to read: inf, 0.1, true, "strong_wolfe".
std::string readable(const nlohmann::json& saved);

}  // namespace lockstep::snapshot
