// The results of `lockstep bench`, as a table and as JSON.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/bench/row.h"

namespace lockstep::bench {

struct Result {
  std::vector<Row> rows;
  std::map<std::string, std::string> unavailable;  // backend: why
  std::vector<std::string> errors;                 // of worlds that failed
  std::vector<std::string> command;

  bool any_wrong() const;
  bool any_measured() const;
};

// Sorts by collective, world and size, and keeps the order of the variants.
void sort_rows(std::vector<Row>& rows);
std::string table_of(const Result& result);
std::string json_of(const Result& result);

}  // namespace lockstep::bench
