// Reads the output of sampler.py and compares it with lockstep's DistributedSampler, index by index.
#include <iostream>
#include <sstream>
#include <string>

#include <lockstep/sampler.h>

namespace {

constexpr size_t kLong = 10000;  // as in sampler.py

std::string indices_for(const std::string& setting) {
  size_t size = 0;
  int world = 0, rank = 0;
  lockstep::SamplerOptions options;
  int64_t epoch = 0;
  std::istringstream(setting) >> size >> world >> rank >> options.seed >> epoch >> options.shuffle >>
      options.drop_last;
  lockstep::DistributedSampler sampler(size, world, rank, options);
  sampler.set_epoch(epoch);
  const auto indices = sampler.indices();
  std::ostringstream text;
  text << sampler.size();
  for (size_t i = 0; i < indices.size(); i += indices.size() < kLong ? 1 : 997) text << ' ' << indices[i];
  return text.str();
}

}  // namespace

int main() {
  size_t compared = 0, wrong = 0, expected_lines = 0;
  for (std::string line; std::getline(std::cin, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) {
      expected_lines = std::stoul(line);
      continue;
    }
    ++compared;
    const auto actual = indices_for(line.substr(0, colon));
    if (actual == line.substr(colon + 2)) continue;
    if (++wrong <= 5) std::cout << "wrong: " << line << "\n  here: " << actual << '\n';
  }
  std::cout << compared << " lists of indices compared, " << wrong << " differ\n";
  if (compared == 0 || compared != expected_lines) {
    std::cout << "wrong: the input is incomplete\n";
    return 1;
  }
  return wrong == 0 ? 0 : 1;
}
