// Tensors are found in all kinds of outputs of forward: containers, structs, TorchScript values.
#include <array>
#include <gtest/gtest.h>
#include <map>
#include <optional>
#include <unordered_map>

#include <ATen/ATen.h>

#include <lockstep/tensors_in.h>

namespace own {
struct Output {
  at::Tensor scores;
  std::vector<at::Tensor> hidden;
  int steps = 0;
};
template <class Visit>
void visit_tensors(const Output& output, Visit&& visit) {
  visit(output.scores);
  visit(output.hidden);
}
struct Unknown {
  at::Tensor hidden_from_us;
};
}  // namespace own

namespace lockstep {
namespace {

size_t count(const auto& value) { return tensors_in(value).size(); }

TEST(TensorsIn, AllKindsOfOutputs) {
  const auto t = at::ones({2});
  EXPECT_EQ(count(t), 1U);
  EXPECT_EQ(count(std::vector<at::Tensor>{t, t}), 2U);
  EXPECT_EQ(count(std::array<at::Tensor, 3>{t, t, t}), 3U);
  EXPECT_EQ(count(std::make_tuple(t, 3, std::make_pair(t, std::string("x")))), 2U);
  EXPECT_EQ(count(std::map<std::string, at::Tensor>{{"a", t}, {"b", t}}), 2U);
  EXPECT_EQ(count(std::unordered_map<int, std::vector<at::Tensor>>{{1, {t, t}}}), 2U);
  EXPECT_EQ(count(std::optional<at::Tensor>(t)), 1U);
  EXPECT_EQ(count(std::optional<at::Tensor>()), 0U);
  EXPECT_EQ(count(c10::optional<at::Tensor>(t)), 1U);
  EXPECT_EQ(count(own::Output{t, {t, t}}), 3U);
  EXPECT_EQ(count(std::vector<own::Output>{{t, {}}, {t, {t}}}), 3U);
  EXPECT_EQ(count(own::Unknown{t}), 0U);
  EXPECT_EQ(count(std::string("tensors")), 0U);
  EXPECT_EQ(count(std::vector<double>{1, 2}), 0U);
  EXPECT_EQ(count(42), 0U);
}

TEST(TensorsIn, ValuesOfTorchScript) {
  const auto t = at::ones({2}), u = at::zeros({2});
  EXPECT_EQ(count(c10::IValue(t)), 1U);
  EXPECT_EQ(count(c10::IValue(c10::ivalue::Tuple::create({t, 7, u}))), 2U);
  EXPECT_EQ(count(c10::IValue(std::vector<at::Tensor>{t, u})), 2U);
}

}  // namespace
}  // namespace lockstep
