// The names of an engine's calls in profiles: "shm:all_reduce".
#pragma once

#include <map>
#include <string>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::c10d_face {

class Titles {
 public:
  // Those of an engine exist as long as the process, because calls may begin while it ends.
  explicit Titles(const std::string& engine);
  const char* of(c10d::OpType type) const;

 private:
  std::map<c10d::OpType, std::string> titles_;
};

}  // namespace lockstep::c10d_face
