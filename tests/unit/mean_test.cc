// Who divides the sum over the ranks.
#include <gtest/gtest.h>
#include <vector>

#include <ATen/ATen.h>

#include <lockstep/mean.h>

namespace lockstep {
namespace {

constexpr at::ScalarType kWide[] = {at::kFloat, at::kDouble};
constexpr at::ScalarType kNarrow[] = {at::kBFloat16, at::kHalf};
constexpr at::ScalarType kAll[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

// The dtypes that a transport averages for free.
Mean::Dtypes every_dtype() {
  Mean::Dtypes dtypes;
  for (const auto dtype : kAll) dtypes.set(static_cast<size_t>(dtype));
  return dtypes;
}
const auto kEvery = every_dtype();
const Mean::Dtypes kNoneOfThem;

enum class Divides { Before, Within, After, Nobody, Several };

Divides who_divides(const Mean& mean, at::ScalarType dtype) {
  const auto sum = at::full({3}, 12, dtype);
  mean.finish(sum);
  const bool before = mean.factor(dtype) != 1;
  const bool within = mean.op(dtype) == ReduceOp::Avg;
  const bool after = sum[0].item<double>() != 12;
  switch (before + within + after) {
    case 0:
      return Divides::Nobody;
    case 1:
      return before ? Divides::Before : within ? Divides::Within : Divides::After;
    default:
      return Divides::Several;
  }
}

// ---- All ranks take part

TEST(Mean, WideGradientsAreDividedWhileTheyAreCopied) {
  for (const auto dtype : kWide) {
    EXPECT_EQ(who_divides(Mean(4, 4, kNoneOfThem), dtype), Divides::Before) << dtype;
    EXPECT_EQ(Mean(4, 4, kNoneOfThem).factor(dtype), 0.25);
    EXPECT_EQ(Mean(3, 3, kNoneOfThem).factor(dtype), 1.0 / 3);
    EXPECT_EQ(Mean(4, 4, kNoneOfThem).op(dtype), ReduceOp::Sum);
  }
}

// They would lose bits before the sum.
TEST(Mean, NarrowGradientsAreNot) {
  for (const auto dtype : kNarrow) {
    EXPECT_EQ(who_divides(Mean(4, 4, kNoneOfThem), dtype), Divides::Within) << dtype;
    EXPECT_EQ(Mean(4, 4, kNoneOfThem).factor(dtype), 1);
  }
}

TEST(Mean, ATransportThatAveragesForFreeDoes) {
  for (const auto dtype : kAll) {
    EXPECT_EQ(who_divides(Mean(4, 4, kEvery), dtype), Divides::Within) << dtype;
  }
}

TEST(Mean, ATransportIsAskedAboutEachDtype) {
  Mean::Dtypes floats;
  floats.set(static_cast<size_t>(at::kFloat));
  const Mean mean(2, 2, floats);
  EXPECT_EQ(who_divides(mean, at::kFloat), Divides::Within);
  EXPECT_EQ(who_divides(mean, at::kDouble), Divides::Before);
}

TEST(Mean, WithoutATransportToAskNothingIsFree) {
  EXPECT_EQ(who_divides(Mean(4, 4), at::kFloat), Divides::Before);
  EXPECT_EQ(who_divides(Mean(4, 4), at::kHalf), Divides::Within);
  EXPECT_EQ(who_divides(Mean(3, 4), at::kHalf), Divides::After);
}

// ---- Some have run out of input: the transport's average would be over all

TEST(Mean, OfSomeRanksIsNeverTheTransports) {
  for (const auto dtype : kAll) {
    EXPECT_EQ(who_divides(Mean(3, 4, kEvery), dtype), Divides::After) << dtype;
  }
  for (const auto dtype : kWide) {
    EXPECT_EQ(who_divides(Mean(3, 4, kNoneOfThem), dtype), Divides::Before) << dtype;
    EXPECT_EQ(Mean(3, 4, kNoneOfThem).factor(dtype), 1.0 / 3);
  }
  for (const auto dtype : kNarrow) {
    EXPECT_EQ(who_divides(Mean(3, 4, kNoneOfThem), dtype), Divides::After) << dtype;
  }
}

TEST(Mean, OfOneRankIsItsGradient) {
  for (const auto dtype : kAll) {
    for (const auto* dtypes : {&kEvery, &kNoneOfThem}) {
      EXPECT_EQ(who_divides(Mean(1, 4, *dtypes), dtype), Divides::Nobody) << dtype;
      EXPECT_EQ(Mean(1, 4, *dtypes).op(dtype), ReduceOp::Sum);
    }
  }
  EXPECT_EQ(Mean().participants(), 1);
  EXPECT_EQ(Mean().factor(at::kFloat), 1);
}

// Multiply, reduce, finish, as the launcher does; those that do not take part add zeros.
TEST(Mean, IsTheMeanWhoeverDivides) {
  constexpr int kWorld = 4;
  for (const int participants : {1, 2, 3, kWorld}) {
    for (const auto* dtypes : {&kEvery, &kNoneOfThem}) {
      const Mean mean(participants, kWorld, *dtypes);
      EXPECT_EQ(mean.participants(), participants);
      for (const auto dtype : kAll) {
        auto sum = at::zeros({2}, dtype);
        for (int rank = 0; rank < participants; ++rank) {
          sum += at::full({2}, 6 * (rank + 1), dtype) * mean.factor(dtype);
        }
        if (mean.op(dtype) == ReduceOp::Avg) sum /= kWorld;
        mean.finish(sum);
        // The mean of 6, 12, 18, …
        EXPECT_NEAR(sum[0].item<double>(), 3.0 * (participants + 1), 1e-5)
            << dtype << ", " << participants << " of " << kWorld;
      }
    }
  }
}

// ---- For communication hooks

TEST(Mean, DividesInPlace) {
  for (const auto dtype : kAll) {
    const auto sum = at::full({2, 2}, 12, dtype);
    // By the ranks that take part, whatever the transport does.
    const auto mean = Mean(3, 4, kEvery).divide(sum);
    EXPECT_EQ(mean.data_ptr(), sum.data_ptr());
    EXPECT_TRUE(at::equal(sum, at::full({2, 2}, 4, dtype))) << dtype;
  }
}

TEST(Mean, DividesIntoANewTensor) {
  for (const auto dtype : kAll) {
    const auto sum = at::full({2, 2}, 12, dtype);
    const auto mean = Mean(4, 4, kNoneOfThem).divided(sum);
    EXPECT_EQ(mean.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(mean, at::full({2, 2}, 3, dtype))) << dtype;
    EXPECT_TRUE(at::equal(sum, at::full({2, 2}, 12, dtype))) << dtype;
  }
}

}  // namespace
}  // namespace lockstep
