// The result of `lockstep bench`, for people and for programs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/bench/row.h"

namespace lockstep::bench {

struct Result {
  std::vector<Row> rows;
  std::map<std::string, std::string> unavailable;  // backend: why
  std::vector<std::string> errors;                 // of worlds that did not come to their end
  std::vector<std::string> command;

  bool any_wrong() const;
  bool any_measured() const;
};

// By collective, world and size; the variants of a row stay in their order.
void sort_rows(std::vector<Row>& rows);
std::string table_of(const Result& result);
std::string json_of(const Result& result);

}  // namespace lockstep::bench
