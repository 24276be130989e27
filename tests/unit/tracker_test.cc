// Which gradients of a pass are complete, unused, missing or one too many (items 10 to 17).
#include "reducer/tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <initializer_list>

namespace lockstep::reducer {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::Optional;
using Arrival = Tracker::Arrival;
using Order = std::vector<size_t>;

auto takes_part(size_t parameter) {
  return AllOf(Field(&Settled::parameter, parameter), Field(&Settled::takes_part, true));
}
auto stands_by(size_t parameter) {
  return AllOf(Field(&Settled::parameter, parameter), Field(&Settled::takes_part, false));
}

const Forward kLocal = {.sync = false};

// A tracker of three parameters, driven as the reducer drives it.
struct Model {
  explicit Model(GraphPolicy policy) : tracker(kParameters, policy) {}

  static Flags flags(std::initializer_list<size_t> set) {
    Flags flags(kParameters);
    for (const auto parameter : set) flags[parameter] = true;
    return flags;
  }

  // A forward whose outputs depend on these parameters. Its graph is alive as long as what is returned.
  auto forward(std::initializer_list<size_t> reach, bool sync = true) {
    return tracker.expect({.sync = sync, .reach = flags(reach)}, true);
  }

  std::vector<Settled> begin(const Forward& forward) {
    if (!tracker.pass()) alive = std::make_shared<int>(0);
    if (!tracker.begin(forward, alive)) return {};
    return tracker.settle_early(requires_grad, !forward.reach.empty());
  }
  // Of a forward whose reach is not known, and whose graph is gone with the pass.
  std::vector<Settled> begin(bool sync = true) {
    open.push_back(tracker.expect({.sync = sync}, true));
    return begin(*open.back());
  }
  std::vector<Settled> begin_local() { return begin(false); }
  void end() {
    tracker.end_pass();
    open.clear();
  }

  std::vector<Arrival> arrive(std::initializer_list<size_t> gradients) {
    std::vector<Arrival> arrivals;
    for (const auto parameter : gradients) arrivals.push_back(tracker.add_gradient(parameter));
    return arrivals;
  }
  Tracker::Seen seen() const { return tracker.seen(requires_grad, none); }
  Tracker::Rest rest() { return tracker.settle_rest(requires_grad); }

  // Whole passes.
  Tracker::Rest pass(std::initializer_list<size_t> gradients) {
    begin();
    arrive(gradients);
    auto left = rest();
    end();
    return left;
  }
  void local_pass(std::initializer_list<size_t> gradients) {
    begin_local();
    arrive(gradients);
    end();
  }
  // The learning pass of a world whose other ranks have used `elsewhere`.
  Tracker::Rest learn(std::initializer_list<size_t> gradients, std::initializer_list<size_t> elsewhere = {}) {
    begin();
    arrive(gradients);
    auto agreed = seen().learned;
    for (const auto parameter : elsewhere) agreed.used[parameter] = true;
    tracker.adopt(agreed);
    tracker.set_learned();
    auto left = rest();
    end();
    return left;
  }

  static constexpr size_t kParameters = 3;
  Tracker tracker;
  Flags requires_grad = Flags(kParameters, true);
  const Flags none = Flags(kParameters, false);
  std::shared_ptr<void> alive;
  std::vector<std::shared_ptr<const Forward>> open;
};

TEST(CompleteOrder, PutsTheOthersBehindLastRegisteredFirst) {
  EXPECT_EQ(complete_order({}, 4), (Order{3, 2, 1, 0}));
  EXPECT_EQ(complete_order({1, 3}, 5), (Order{1, 3, 4, 2, 0}));
  EXPECT_EQ(complete_order({0, 1, 2}, 3), (Order{0, 1, 2}));
  EXPECT_THAT(complete_order({}, 0), IsEmpty());
}

// ---- The learning pass

TEST(LearningPass, LaunchesNothingBeforeItsEnd) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph, kStaticGraph}) {
    Model model(policy);
    model.requires_grad[0] = false;
    const auto forward = model.forward({2});
    EXPECT_THAT(model.begin(*forward), IsEmpty());
    EXPECT_THAT(model.arrive({2, 1}), ElementsAre(Arrival::Counted, Arrival::Counted));
    EXPECT_FALSE(model.tracker.learned());
    model.tracker.adopt(model.seen().learned);
    model.tracker.set_learned();
    EXPECT_TRUE(model.tracker.learned());
  }
}

TEST(LearningPass, ShowsTheOrderInWhichGradientsWereReady) {
  for (const auto& policy : {kCompleteGraph, kStaticGraph}) {
    Model model(policy);
    model.begin();
    model.arrive({1, 2});
    EXPECT_EQ(model.seen().learned.order, (Order{1, 2, 0}));
    EXPECT_EQ(model.seen().learned.used, Model::flags({1, 2}));
  }
}

TEST(LearningPass, OfAChangingGraphMayNotHaveSeenAllOfIt) {
  Model model(kChangingGraph);
  model.begin();
  model.arrive({0, 1});
  EXPECT_EQ(model.seen().learned.order, (Order{2, 1, 0}));
}

// A parameter counts where it got its first gradient.
TEST(LearningPass, OfAStaticGraphCountsAParameterOnce) {
  Model model(kStaticGraph);
  model.begin();
  model.arrive({1, 0, 1, 2, 0});
  EXPECT_EQ(model.seen().learned.order, (Order{1, 0, 2}));
}

TEST(LearningPass, IsTheFirstThatIsSynchronised) {
  Model model(kCompleteGraph);
  model.local_pass({0, 1, 2});
  EXPECT_FALSE(model.tracker.learned());
  model.begin();
  model.arrive({1, 2, 0});
  EXPECT_EQ(model.seen().learned.order, (Order{1, 2, 0}));
}

// What came before the second forward was announced has no place in the order, but counts as used.
TEST(LearningPass, MayBecomeSynchronisedOnTheWay) {
  Model model(kCompleteGraph);
  model.begin_local();
  model.arrive({0});
  model.begin();
  model.arrive({1, 2});
  const auto seen = model.seen();
  EXPECT_EQ(seen.learned.order, (Order{1, 2, 0}));
  EXPECT_EQ(seen.learned.used, Model::flags({0, 1, 2}));
  EXPECT_THAT(seen.missing, IsEmpty());
  EXPECT_FALSE(seen.one_too_many);
}

TEST(LearningPass, NamesWhatIsMissing) {
  Model model(kCompleteGraph);
  model.begin();
  model.arrive({1});
  EXPECT_THAT(model.seen().missing, ElementsAre(0, 2));
  model.requires_grad[2] = false;
  EXPECT_THAT(model.seen().missing, ElementsAre(0));
  for (const auto& policy : {kChangingGraph, kStaticGraph}) {
    Model tolerant(policy);
    tolerant.begin();
    tolerant.arrive({1});
    EXPECT_THAT(tolerant.seen().missing, IsEmpty());
  }
}

TEST(LearningPass, NamesTheFirstWithOneTooMany) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph}) {
    Model model(policy);
    model.begin();
    EXPECT_THAT(model.arrive({2, 1, 0}), ElementsAre(Arrival::Counted, Arrival::Counted, Arrival::Counted));
    EXPECT_FALSE(model.seen().one_too_many);
    EXPECT_THAT(model.arrive({2, 1}), ElementsAre(Arrival::Counted, Arrival::Counted));
    EXPECT_THAT(model.seen().one_too_many, Optional(1U));
  }
  Model model(kStaticGraph);
  model.begin();
  model.arrive({2, 2, 1, 0});
  EXPECT_FALSE(model.seen().one_too_many);
}

// Several passes before it are not several gradients in one pass.
TEST(LearningPass, CountsWhatPassesBeforeItHaveLeftAsUsed) {
  Model model(kCompleteGraph);
  model.local_pass({0, 1});
  model.local_pass({0, 1});
  model.begin();
  model.arrive({2, 1});
  const auto seen = model.seen();
  EXPECT_THAT(seen.missing, IsEmpty());
  EXPECT_FALSE(seen.one_too_many);
  EXPECT_EQ(seen.learned.used, Model::flags({0, 1, 2}));
  model.tracker.adopt(seen.learned);
  model.tracker.set_learned();
  EXPECT_THAT(model.rest().settled, ElementsAre(takes_part(0), takes_part(1), takes_part(2)));
}

TEST(LearningPass, EndsAsAnyOther) {
  Model model(kCompleteGraph);
  model.requires_grad[1] = false;
  const auto complete = model.learn({2, 0});
  EXPECT_THAT(complete.settled, ElementsAre(takes_part(0), stands_by(1), takes_part(2)));
  EXPECT_THAT(complete.missing, IsEmpty());
  Model changing(kChangingGraph);
  EXPECT_THAT(changing.learn({2}).settled, ElementsAre(stands_by(0), stands_by(1), takes_part(2)));
}

TEST(LearningPass, TellsSparseGradients) {
  Model model(kCompleteGraph);
  model.tracker.set_sparse(0);
  model.begin();
  model.arrive({2, 1, 0});
  auto learned = model.tracker.seen(model.requires_grad, Model::flags({1})).learned;
  EXPECT_EQ(learned.sparse, Model::flags({0, 1}));
  EXPECT_FALSE(model.tracker.is_sparse(1));
  // Another rank has seen one more.
  learned.sparse[2] = true;
  model.tracker.adopt(learned);
  model.tracker.set_learned();
  for (size_t i = 0; i < Model::kParameters; ++i) EXPECT_TRUE(model.tracker.is_sparse(i));
}

// The agreed order is the leader's, whatever this rank has seen. Only a graph that repeats itself can leave
// out what nobody has used.
TEST(LearningPass, PlansWhatTheRanksAgreeOn) {
  const Learned agreed = {.order = {1, 0, 2}, .sparse = Model::flags({}), .used = Model::flags({0, 2})};
  for (const auto& policy : {kCompleteGraph, kChangingGraph, kStaticGraph}) {
    Model model(policy);
    model.begin();
    model.arrive({2});
    EXPECT_EQ(model.tracker.adopt(agreed), policy.repeats_first_pass ? (Order{0, 2}) : (Order{1, 0, 2}));
    model.tracker.set_learned();
  }
}

// ---- Every parameter gets one gradient

TEST(CompleteGraph, EveryGradientIsComplete) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(model.begin(), IsEmpty());
    EXPECT_THAT(model.arrive({0, 2, 1}),
                ElementsAre(Arrival::Complete, Arrival::Complete, Arrival::Complete));
    const auto rest = model.rest();
    EXPECT_THAT(rest.settled, IsEmpty());
    EXPECT_THAT(rest.missing, IsEmpty());
    EXPECT_FALSE(rest.one_too_many);
    model.end();
  }
}

TEST(CompleteGraph, TheSecondGradientIsOneTooMany) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.begin();
  EXPECT_THAT(model.arrive({1, 2, 1}),
              ElementsAre(Arrival::Complete, Arrival::Complete, Arrival::OneTooMany));
}

TEST(CompleteGraph, NamesWhatIsMissingAtTheEnd) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  const auto rest = model.pass({1});
  EXPECT_THAT(rest.missing, ElementsAre(0, 2));
  EXPECT_THAT(rest.settled, IsEmpty());
}

// Reach tells nothing here: that a parameter cannot be reached is an error, and known at the end.
TEST(CompleteGraph, AsksForNoReach) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({2});
  EXPECT_THAT(model.begin(*forward), IsEmpty());
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
}

TEST(CompleteGraph, AFrozenParameterStandsByFromTheBeginning) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.requires_grad[1] = false;
  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
  model.arrive({2, 0});
  const auto rest = model.rest();
  EXPECT_THAT(rest.settled, IsEmpty());
  EXPECT_THAT(rest.missing, IsEmpty());
  model.end();
  model.requires_grad[1] = true;
  EXPECT_THAT(model.begin(), IsEmpty());
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
}

// Frozen after its forward, so that autograd accumulates into it all the same.
TEST(CompleteGraph, AGradientOfAFrozenParameterIsUnexpected) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.requires_grad[1] = false;
  model.begin();
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Unexpected));
}

TEST(CompleteGraph, FrozenDuringThePassIsNotMissing) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.begin();
  model.arrive({2, 1});
  model.requires_grad[0] = false;
  const auto rest = model.rest();
  EXPECT_THAT(rest.settled, ElementsAre(stands_by(0)));
  EXPECT_THAT(rest.missing, IsEmpty());
}

// ---- Parameters may be left out

TEST(ChangingGraph, WhatNoOutputReachesStandsByFromTheBeginning) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({0, 2});
  EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(1)));
  EXPECT_THAT(model.arrive({2, 0}), ElementsAre(Arrival::Complete, Arrival::Complete));
  EXPECT_THAT(model.rest().settled, IsEmpty());
}

TEST(ChangingGraph, ItsGradientIsUnexpected) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({0, 2});
  model.begin(*forward);
  EXPECT_THAT(model.arrive({0, 1}), ElementsAre(Arrival::Complete, Arrival::Unexpected));
}

TEST(ChangingGraph, TheSecondGradientIsOneTooMany) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({0, 2});
  model.begin(*forward);
  EXPECT_THAT(model.arrive({0, 0}), ElementsAre(Arrival::Complete, Arrival::OneTooMany));
}

// Item 12: an output that is left out of the loss.
TEST(ChangingGraph, WhatCouldBeReachedAndWasNotStandsByAtTheEnd) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({0, 2});
  model.begin(*forward);
  model.arrive({2});
  const auto rest = model.rest();
  EXPECT_THAT(rest.settled, ElementsAre(stands_by(0)));
  EXPECT_THAT(rest.missing, IsEmpty());
}

// The pass may go back to any of them, synchronised or not.
TEST(ChangingGraph, TheReachesOfOpenForwardsAddUp) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto first = model.forward({0});
  const auto second = model.forward({2}, false);
  EXPECT_THAT(model.begin(*first), ElementsAre(stands_by(1)));
  EXPECT_THAT(model.begin(*second), IsEmpty());
  EXPECT_THAT(model.arrive({0, 2}), ElementsAre(Arrival::Complete, Arrival::Complete));
}

TEST(ChangingGraph, AForwardWhoseGraphIsGoneReachesNothing) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  auto dropped = model.forward({0, 1});
  const auto kept = model.forward({2});
  dropped.reset();
  EXPECT_THAT(model.begin(*kept), ElementsAre(stands_by(0), stands_by(1)));
  model.arrive({2});
  model.rest();
  model.end();
  const auto next = model.forward({1});
  EXPECT_THAT(model.begin(*next), ElementsAre(stands_by(0)));  // the one that is kept reaches 2 again
}

// As that of a forward from before the learning pass.
TEST(ChangingGraph, NothingIsKnownEarlyIfTheReachOfOneIsNotKnown) {
  Model model(kChangingGraph);
  auto unknown = model.tracker.expect({}, true);
  model.learn({2, 1, 0});
  const auto known = model.forward({2});
  EXPECT_THAT(model.begin(*known), IsEmpty());
  EXPECT_THAT(model.arrive({2}), ElementsAre(Arrival::Complete));
  EXPECT_THAT(model.rest().settled, ElementsAre(stands_by(0), stands_by(1)));
  model.end();
  unknown.reset();
  EXPECT_THAT(model.begin(*known), ElementsAre(stands_by(0), stands_by(1)));
}

// The wrapper has not seen its forward, so it knows no reach, whatever else is open.
TEST(ChangingGraph, NothingIsKnownEarlyInAPassThatBypassesTheWrapper) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  const auto open = model.forward({2});
  model.requires_grad[0] = false;
  EXPECT_THAT(model.begin({.bypasses = true}), ElementsAre(stands_by(0)));
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
  EXPECT_THAT(model.rest().settled, ElementsAre(stands_by(2)));
}

TEST(ChangingGraph, AFrozenParameterStandsByWhereverItIsReached) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.requires_grad[0] = false;
  const auto forward = model.forward({0, 1});
  EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(0), stands_by(2)));
}

// ---- Gradients from passes that were not synchronised (items 15, 16)

TEST(LeftBehind, CountsAndIsNoBusinessOfTheOthers) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph, kStaticGraph}) {
    Model model(policy);
    model.learn({2, 1, 0});
    EXPECT_THAT(model.begin_local(), IsEmpty());
    // How many come, and which, matters in synchronised passes only.
    EXPECT_THAT(model.arrive({1, 1}), ElementsAre(Arrival::Counted, Arrival::Counted));
    model.end();
    EXPECT_TRUE(model.tracker.was_used(1));
    EXPECT_FALSE(model.tracker.was_used(0));
    // Of the gradients counted above, none belongs to the next pass.
    model.begin();
    EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
  }
}

TEST(LeftBehind, TravelsEarlyIfNothingIsToBeExpected) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.local_pass({1});
  model.local_pass({0});  // further passes forget nothing
  const auto forward = model.forward({2});
  EXPECT_THAT(model.begin(*forward), ElementsAre(takes_part(0), takes_part(1)));
  EXPECT_TRUE(model.tracker.was_used(1));
  model.arrive({2});
  EXPECT_THAT(model.rest().settled, IsEmpty());
}

TEST(LeftBehind, TravelsAtTheEndIfNothingHasCome) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph}) {
    Model model(policy);
    model.learn({2, 1, 0});
    model.local_pass({1});
    const auto rest = model.pass({2, 0});
    EXPECT_THAT(rest.settled, ElementsAre(takes_part(1)));
    EXPECT_THAT(rest.missing, IsEmpty());
  }
}

TEST(LeftBehind, TravelsWithTheGradientThatComes) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.local_pass({1});
  const auto forward = model.forward({0, 1, 2});
  EXPECT_THAT(model.begin(*forward), IsEmpty());
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
}

// Used under no_sync, then frozen.
TEST(LeftBehind, OfAFrozenParameterTravels) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.local_pass({1});
  model.requires_grad[1] = false;
  EXPECT_THAT(model.begin(), ElementsAre(takes_part(1)));
}

TEST(LeftBehind, IsForgottenAfterTheSynchronisedPass) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.local_pass({0, 1});
  model.pass({2});
  for (size_t i = 0; i < Model::kParameters; ++i) EXPECT_FALSE(model.tracker.was_used(i));
  const auto forward = model.forward({0, 2});
  EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(1)));
  model.arrive({2});
  EXPECT_THAT(model.rest().settled, ElementsAre(stands_by(0)));
}

// Its place in the bucket is filled, so a gradient that comes after all, from beside the outputs of forward,
// must not fill it again.
TEST(LeftBehind, AGradientOfWhatHasTravelledEarlyIsUnexpected) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.local_pass({1});
  const auto forward = model.forward({2});
  EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(0), takes_part(1)));
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Unexpected));
}

// ---- Every pass repeats the first (item 14)

TEST(StaticGraph, LearnsHowManyGradientsAParameterGets) {
  Model model(kStaticGraph);
  const auto first = model.learn({2, 1, 1, 0, 1});
  EXPECT_THAT(first.settled, ElementsAre(takes_part(0), takes_part(1), takes_part(2)));
  model.begin();
  EXPECT_THAT(model.arrive({1, 2, 1, 1}),
              ElementsAre(Arrival::Counted, Arrival::Complete, Arrival::Counted, Arrival::Complete));
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::OneTooMany));
}

TEST(StaticGraph, TooFewAreMissing) {
  Model model(kStaticGraph);
  model.learn({2, 1, 1, 0});
  EXPECT_THAT(model.pass({2, 1, 0}).missing, ElementsAre(1));
  EXPECT_THAT(model.pass({2, 1, 1}).missing, ElementsAre(0));
  const auto rest = model.pass({2, 1, 1, 0});
  EXPECT_THAT(rest.missing, IsEmpty());
  EXPECT_THAT(rest.settled, IsEmpty());
}

TEST(StaticGraph, ReachTellsNothing) {
  Model model(kStaticGraph);
  model.learn({2, 1, 0});
  const auto forward = model.forward({2});
  EXPECT_THAT(model.begin(*forward), IsEmpty());
  EXPECT_THAT(model.arrive({0}), ElementsAre(Arrival::Complete));
}

TEST(StaticGraph, WhatOtherRanksUseStandsByFromTheBeginning) {
  Model model(kStaticGraph);
  EXPECT_THAT(model.learn({2, 0}, {1}).settled, ElementsAre(takes_part(0), stands_by(1), takes_part(2)));
  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
  model.arrive({2, 0});
  EXPECT_THAT(model.rest().settled, IsEmpty());
  model.end();
  model.begin();
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::OneTooMany));
}

TEST(StaticGraph, WhatNobodyUsesIsNotSettledAtAll) {
  Model model(kStaticGraph);
  EXPECT_THAT(model.learn({2, 0}).settled, ElementsAre(takes_part(0), takes_part(2)));
  EXPECT_THAT(model.begin(), IsEmpty());
  EXPECT_THAT(model.arrive({2, 0}), ElementsAre(Arrival::Complete, Arrival::Complete));
  const auto rest = model.rest();
  EXPECT_THAT(rest.settled, IsEmpty());
  EXPECT_THAT(rest.missing, IsEmpty());
  EXPECT_FALSE(rest.one_too_many);
}

TEST(StaticGraph, AGradientOfWhatNobodyUsedIsOneTooMany) {
  Model model(kStaticGraph);
  model.learn({2, 0});
  model.begin();
  EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::OneTooMany));
}

// It would never travel: it has no place.
TEST(StaticGraph, WhatNobodyUsedMustNotBeUsedUnderNoSyncEither) {
  Model model(kStaticGraph);
  model.learn({2});
  model.local_pass({1, 0});
  EXPECT_THAT(model.pass({2}).one_too_many, Optional(0U));
  EXPECT_FALSE(model.pass({2}).one_too_many);
}

// What passes before have left does not stand in for the gradient that the graph promises.
TEST(StaticGraph, WhatIsLeftBehindDoesNotReplaceAGradient) {
  Model model(kStaticGraph);
  model.learn({2, 1, 0});
  model.local_pass({1});
  const auto rest = model.pass({2, 0});
  EXPECT_THAT(rest.settled, IsEmpty());
  EXPECT_THAT(rest.missing, ElementsAre(1));
}

// Where the graph promises none, it travels.
TEST(StaticGraph, WhatIsLeftBehindOfAParameterThatOtherRanksUseTravels) {
  Model model(kStaticGraph);
  model.learn({2, 0}, {1});
  model.local_pass({1});
  EXPECT_THAT(model.begin(), ElementsAre(takes_part(1)));
}

// Planned, as it was used before the learning pass; of later passes none is expected to use it.
TEST(StaticGraph, WhatWasLeftBehindBeforeTheFirstPassHasAPlace) {
  Model model(kStaticGraph);
  model.local_pass({1});
  EXPECT_THAT(model.learn({2, 0}).settled, ElementsAre(takes_part(0), takes_part(1), takes_part(2)));
  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
}

TEST(StaticGraph, AFrozenParameterStandsBy) {
  Model model(kStaticGraph);
  model.learn({2, 1, 1, 0});
  model.requires_grad[1] = false;
  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
  model.arrive({2, 0});
  EXPECT_THAT(model.rest().missing, IsEmpty());
}

// ---- Ranks that take part without gradients of their own

TEST(Shadowing, HasSeenNothing) {
  Model model(kCompleteGraph);
  model.tracker.set_sparse(1);
  const auto nothing = model.tracker.seen_nothing();
  EXPECT_EQ(nothing.order, (Order{2, 1, 0}));
  EXPECT_EQ(nothing.sparse, Model::flags({1}));
  EXPECT_EQ(nothing.used, Model::flags({}));
}

TEST(Shadowing, TakesThePlanOfTheOthers) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph}) {
    Model model(policy);
    const Learned agreed = {.order = {1, 2, 0}, .sparse = Model::flags({0}), .used = Model::flags({0, 1, 2})};
    EXPECT_EQ(model.tracker.adopt(agreed), (Order{1, 2, 0}));
    model.tracker.set_learned();
    model.end();
    EXPECT_TRUE(model.tracker.learned());
    EXPECT_TRUE(model.tracker.is_sparse(0));
    model.begin();
    EXPECT_THAT(model.arrive({1}), ElementsAre(Arrival::Complete));
  }
}

// The plan is known, but not how often this rank uses its parameters: its first pass shows it.
TEST(Shadowing, ARankCountsInItsFirstPassOfItsOwn) {
  Model model(kStaticGraph);
  EXPECT_EQ(model.tracker.adopt({.order = {2, 1, 0}, .sparse = model.none, .used = Model::flags({1, 2})}),
            (Order{2, 1}));
  model.tracker.set_learned();
  model.end();

  EXPECT_THAT(model.begin(), IsEmpty());
  EXPECT_THAT(model.arrive({2, 2}), ElementsAre(Arrival::Counted, Arrival::Counted));
  const auto first = model.rest();
  EXPECT_THAT(first.settled, ElementsAre(stands_by(1), takes_part(2)));
  EXPECT_THAT(first.missing, IsEmpty());
  model.end();

  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
  EXPECT_THAT(model.arrive({2, 2, 2}), ElementsAre(Arrival::Counted, Arrival::Complete, Arrival::OneTooMany));
}

TEST(Shadowing, ARankMustNotUseWhatTheOthersDidNot) {
  Model model(kStaticGraph);
  model.tracker.adopt({.order = {2, 1, 0}, .sparse = model.none, .used = Model::flags({1, 2})});
  model.tracker.set_learned();
  EXPECT_THAT(model.pass({2, 1, 0}).one_too_many, Optional(0U));
}

TEST(Shadowing, AFrozenParameterStandsByWhileARankCounts) {
  Model model(kStaticGraph);
  model.tracker.adopt({.order = {2, 1, 0}, .sparse = model.none, .used = Model::flags({0, 1, 2})});
  model.tracker.set_learned();
  model.requires_grad[1] = false;
  EXPECT_THAT(model.begin(), ElementsAre(stands_by(1)));
  EXPECT_THAT(model.arrive({2, 0}), ElementsAre(Arrival::Counted, Arrival::Counted));
  EXPECT_THAT(model.rest().settled, ElementsAre(takes_part(0), takes_part(2)));
}

// ---- Passes and their forwards (item 17)

TEST(Pass, FollowsItsForward) {
  Model model(kCompleteGraph);
  EXPECT_FALSE(model.tracker.pass());
  const auto alive = std::make_shared<int>(0);
  EXPECT_FALSE(model.tracker.begin(kLocal, alive));
  ASSERT_TRUE(model.tracker.pass());
  EXPECT_FALSE(model.tracker.pass()->sync);
  model.end();
  EXPECT_FALSE(model.tracker.pass());
  EXPECT_TRUE(model.tracker.begin({.turn = {.participants = 3, .leader = 1}}, alive));
  EXPECT_TRUE(model.tracker.pass()->sync);
  EXPECT_EQ(model.tracker.pass()->turn.participants, 3);
  EXPECT_EQ(model.tracker.pass()->turn.leader, 1);
}

TEST(Pass, OfSeveralForwardsIsSynchronisedIfOneIs) {
  Model model(kCompleteGraph);
  const auto alive = std::make_shared<int>(0);
  EXPECT_FALSE(model.tracker.begin({.sync = false, .turn = {.participants = 4, .leader = 2}}, alive));
  EXPECT_TRUE(model.tracker.begin({.turn = {.participants = 3, .leader = 1}}, nullptr));
  // The turn is that of the forward by which it became so, and no other changes it.
  EXPECT_FALSE(model.tracker.begin({.turn = {.participants = 2, .leader = 0}}, nullptr));
  EXPECT_FALSE(model.tracker.begin(kLocal, nullptr));
  EXPECT_TRUE(model.tracker.pass()->sync);
  EXPECT_EQ(model.tracker.pass()->turn.participants, 3);
  EXPECT_EQ(model.tracker.pass()->turn.leader, 1);
}

// What has come until then is settled at the end, even where no synchronised forward reaches it.
TEST(Pass, ThatBecomesSynchronisedTakesWhatHasCome) {
  for (const auto& policy : {kCompleteGraph, kChangingGraph, kStaticGraph}) {
    Model model(policy);
    model.learn({2, 1, 0});
    const auto local = model.forward({0}, false);
    EXPECT_THAT(model.begin(*local), IsEmpty());
    EXPECT_THAT(model.arrive({0}), ElementsAre(Arrival::Counted));
    const auto synchronised = model.forward({1, 2});
    EXPECT_THAT(model.begin(*synchronised), IsEmpty());
    EXPECT_THAT(model.arrive({1, 2}), ElementsAre(Arrival::Complete, Arrival::Complete));
    EXPECT_THAT(model.rest().settled, ElementsAre(takes_part(0)));
    model.end();
    EXPECT_FALSE(model.tracker.was_used(0));
  }
}

// Nothing more is to be expected of a parameter that no open forward reaches, but it is no bystander.
TEST(Pass, ThatBecomesSynchronisedLeavesWhatHasComeForItsEnd) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  model.begin({.sync = false, .bypasses = true});
  model.arrive({0});
  const auto synchronised = model.forward({2});
  EXPECT_THAT(model.begin(*synchronised), ElementsAre(stands_by(1)));
  EXPECT_FALSE(model.tracker.pass()->bypasses);
  EXPECT_THAT(model.arrive({2}), ElementsAre(Arrival::Complete));
  EXPECT_THAT(model.rest().settled, ElementsAre(takes_part(0)));
}

TEST(Pass, ThatBecomesSynchronisedCountsWhatHasCome) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.begin_local();
  model.arrive({0});
  model.begin();
  EXPECT_THAT(model.arrive({0}), ElementsAre(Arrival::OneTooMany));
  Model twice(kStaticGraph);
  twice.learn({2, 1, 0, 0});
  twice.begin_local();
  twice.arrive({0});
  twice.begin();
  EXPECT_THAT(twice.arrive({0}), ElementsAre(Arrival::Complete));
}

TEST(Pass, BypassesTheWrapperIfAllItsForwardsDo) {
  const auto alive = std::make_shared<int>(0);
  for (const bool sync : {true, false}) {
    Model model(kCompleteGraph);
    const Forward past = {.sync = sync, .bypasses = true};
    model.tracker.begin(past, alive);
    EXPECT_TRUE(model.tracker.pass()->bypasses);
    model.tracker.begin(past, nullptr);
    EXPECT_TRUE(model.tracker.pass()->bypasses);
    model.tracker.begin(kLocal, nullptr);
    EXPECT_FALSE(model.tracker.pass()->bypasses);
    model.tracker.begin(past, nullptr);
    EXPECT_FALSE(model.tracker.pass()->bypasses);
    model.end();
    model.tracker.begin(past, alive);
    EXPECT_TRUE(model.tracker.pass()->bypasses);
  }
}

TEST(Pass, IsInterruptedIfItsEndCannotComeAnyMore) {
  Model model(kCompleteGraph);
  EXPECT_FALSE(model.tracker.interrupted());
  model.begin();
  model.arrive({1});
  EXPECT_FALSE(model.tracker.interrupted());
  // Another forward in the same pass, which has its callback already.
  model.tracker.begin({}, nullptr);
  EXPECT_FALSE(model.tracker.interrupted());
  model.alive.reset();
  EXPECT_TRUE(model.tracker.interrupted());
  EXPECT_TRUE(model.tracker.pass()->sync);
  model.end();
  EXPECT_FALSE(model.tracker.interrupted());
}

// A half-done pass that was not synchronised does no harm: what it has added is there.
TEST(Pass, ThatWasInterruptedAndNotSynchronisedLeavesItsGradients) {
  Model model(kCompleteGraph);
  model.learn({2, 1, 0});
  model.begin_local();
  model.arrive({1, 2});
  model.alive.reset();
  EXPECT_TRUE(model.tracker.interrupted());
  model.end();
  EXPECT_TRUE(model.tracker.was_used(1));
  EXPECT_THAT(model.begin(), IsEmpty());
  EXPECT_THAT(model.arrive({2, 1, 0}), ElementsAre(Arrival::Complete, Arrival::Complete, Arrival::Complete));
}

TEST(Pass, ThatIsDroppedLeavesNothingSettled) {
  Model model(kChangingGraph);
  model.learn({2, 1, 0});
  {
    const auto forward = model.forward({1, 2});
    EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(0)));
    model.arrive({1});
    model.end();
  }
  const auto forward = model.forward({0, 1});
  EXPECT_THAT(model.begin(*forward), ElementsAre(stands_by(2)));
  EXPECT_THAT(model.arrive({1, 0}), ElementsAre(Arrival::Complete, Arrival::Complete));
}

// Each parameter has one place in the plan, whatever a learning pass that came to nothing has seen.
TEST(Pass, ThatIsDroppedTeachesNothing) {
  Model model(kCompleteGraph);
  model.begin();
  model.arrive({1, 0});
  model.end();
  model.begin();
  model.arrive({2, 1, 0});
  EXPECT_EQ(model.seen().learned.order, (Order{2, 1, 0}));
}

// ---- Forwards that nobody will announce

TEST(Unwatched, IsTakenOnce) {
  Model model(kCompleteGraph);
  EXPECT_FALSE(model.tracker.take_unwatched());
  model.tracker.expect({.sync = false, .turn = {.participants = 2, .leader = 1}}, false);
  const auto taken = model.tracker.take_unwatched();
  ASSERT_TRUE(taken);
  EXPECT_FALSE(taken->sync);
  EXPECT_FALSE(taken->bypasses);
  EXPECT_EQ(taken->turn.leader, 1);
  EXPECT_FALSE(model.tracker.take_unwatched());
}

TEST(Unwatched, IsTheLastForwardOnly) {
  Model model(kCompleteGraph);
  model.tracker.expect({.sync = false}, false);
  model.tracker.expect({.sync = true}, false);
  const auto last = model.tracker.take_unwatched();
  ASSERT_TRUE(last);
  EXPECT_TRUE(last->sync);
  model.tracker.expect({}, false);
  const auto watched = model.tracker.expect({}, true);
  EXPECT_FALSE(model.tracker.take_unwatched());
}

}  // namespace
}  // namespace lockstep::reducer
