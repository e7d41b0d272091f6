#include "control/front/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trainyard::control {
namespace {

using testing::Eq;
using testing::Optional;

class PlacesTest : public testing::Test {
 protected:
  static FrontBounds bounds() {
    FrontBounds made;
    made.connections = 6;
    made.read_per_address = 2;
    made.bytes_of_all = 100;
    return made;
  }

  Places places_{bounds()};
};

TEST_F(PlacesTest, OfAnAddressSoManyAreReadAndTheNewestIsNext) {
  for (const Places::Id id : {1, 2, 3, 4})
    places_.add(id, "a");
  places_.add(5, "b");
  EXPECT_THAT(places_.take_turn("a"), Optional(4));
  EXPECT_THAT(places_.take_turn("a"), Optional(3));
  EXPECT_EQ(places_.take_turn("a"), std::nullopt);
  EXPECT_THAT(places_.take_turn("b"), Optional(5));
  places_.admit(4);
  EXPECT_THAT(places_.take_turn("a"), Optional(2)) << "one that is admitted takes no place";
  places_.remove(3);
  EXPECT_THAT(places_.take_turn("a"), Optional(1));
  EXPECT_EQ(places_.take_turn("nobody's"), std::nullopt);
  EXPECT_EQ(places_.counts().connections, 4);
  EXPECT_EQ(places_.counts().waiting, 0);
  EXPECT_EQ(places_.counts().admitted, 1);
}

TEST_F(PlacesTest, WhereThereAreTooManyTheAddressWithMostLosesOne) {
  for (const Places::Id id : {1, 2, 3})
    places_.add(id, "many");
  for (const Places::Id id : {4, 5, 6}) {
    places_.add(id, "agents");
    (void)places_.take_turn("agents");
    places_.admit(id);
  }
  EXPECT_EQ(places_.excess(), std::nullopt);
  places_.add(7, "new");
  EXPECT_THAT(places_.excess(), Optional(3)) << "not the new one, and no agent";
  places_.remove(3);
  EXPECT_EQ(places_.excess(), std::nullopt);
}

TEST_F(PlacesTest, OfAddressesThatHaveEquallyManyTheOneThatCameFirstLosesOne) {
  for (const auto& [id, address] :
       {std::pair(1, "m"), {2, "c"}, {3, "x"}, {4, "a"}, {5, "d"}, {6, "b"}})
    places_.add(static_cast<Places::Id>(id), address);
  (void)places_.take_turn("m");
  places_.add(7, "new");
  EXPECT_THAT(places_.excess(), Optional(1)) << "neither the first by name nor the new one";
  places_.remove(1);
  places_.add(8, "m");
  EXPECT_THAT(places_.excess(), Optional(2)) << "another address each time";
}

TEST_F(PlacesTest, WhereTooMuchIsReadTheAddressWithMostLosesTheLargest) {
  for (const Places::Id id : {1, 2}) {
    places_.add(id, "a");
    (void)places_.take_turn("a");
  }
  places_.add(3, "b");
  (void)places_.take_turn("b");
  places_.set_bytes(1, 20);
  places_.set_bytes(2, 30);
  places_.set_bytes(3, 40);
  EXPECT_EQ(places_.excess(), std::nullopt);
  places_.set_bytes(3, 51);
  EXPECT_THAT(places_.excess(), Optional(3));
  places_.set_bytes(1, 40);
  EXPECT_THAT(places_.excess(), Optional(1));
  places_.admit(1);
  EXPECT_EQ(places_.counts().bytes, 81) << "what is admitted does not count";
  places_.set_bytes(1, 4000);
  EXPECT_EQ(places_.excess(), std::nullopt);
  places_.remove(3);
  EXPECT_EQ(places_.counts().bytes, 30);
}

}  // namespace
}  // namespace trainyard::control
