// The rules of every instruction set of this CPU give the same bits, whatever the number of elements is.
#include "optim/rules.h"

#include <cstring>
#include <gtest/gtest.h>
#include <vector>

namespace lockstep::optim {
namespace {

constexpr size_t kLargest = 4097;
constexpr size_t kSizes[] = {0, 1, 3, 15, 16, 17, 1000, kLargest};

std::vector<float> numbers(uint32_t seed, bool positive) {
  std::vector<float> values(kLargest);
  for (auto& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-31f;
    if (positive && value < 0) value = -value;
  }
  return values;
}

struct Arrays {
  std::vector<float> values = numbers(1, false), parameters = numbers(2, false);
  std::vector<float> states[kStates] = {numbers(3, true), numbers(4, true), numbers(5, true)};

  Arrays() {
    for (auto& value : states[0]) value += 1;  // a variance: the square of the average is less
  }

  void update(Update rule, const Step& step, size_t count) {
    float* pointers[kStates] = {states[0].data(), states[1].data(), states[2].data()};
    rule(step, values.data(), parameters.data(), pointers, count);
  }
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(Rules, AreTheSameWithEveryInstructionSet) {
  for (const auto rule : {Rule::Sgd, Rule::Adam, Rule::Adagrad, Rule::RmsProp}) {
    for (const bool fused : {true, false}) {
      for (int switches = 0; switches < 16; ++switches) {
        const Step step{.rule = rule,
                        .clips = (switches & 1) != 0,
                        .decays = (switches & 2) != 0,
                        .shrinks = (switches & 4) != 0,
                        .clip = 0.7F,
                        .decay = 0.01F,
                        .shrink = 0.99F,
                        .has_momentum = (switches & 8) != 0,
                        .nesterov = (switches & 4) != 0,
                        .momentum = 0.9F,
                        .undamped = 0.8F,
                        .keeps_largest = (switches & 8) != 0,
                        .centered = (switches & 2) != 0,
                        .past1 = 0.9F,
                        .present1 = 0.1F,
                        .past2 = 0.999F,
                        .present2 = 0.001F,
                        .root_correction = 0.3F,
                        .epsilon = 1e-8F,
                        .scale = -0.01F};
        for (const auto size : kSizes) {
          Arrays expected;
          expected.update(find_update(rule, fused, Isa::Plain), step, size);
          for (const auto isa : {Isa::Avx2, Isa::Avx512}) {
            Arrays found;
            found.update(find_update(rule, fused, isa), step, size);
            ASSERT_TRUE(same(found.values, expected.values)) << size << " elements";
            for (int i = 0; i < kStates; ++i) ASSERT_TRUE(same(found.states[i], expected.states[i])) << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
