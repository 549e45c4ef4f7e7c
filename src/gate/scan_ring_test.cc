#include "gate/scan_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace isola::gate {
namespace {

TEST(ScanRing, PiecesAreTakenInOrderAndSlotsUsedAgain) {
  auto ring = ScanRing::make();
  ASSERT_TRUE(ring) << ring.error().text();
  auto view = ScanRingView::map(ring->fd());
  ASSERT_TRUE(view) << view.error().text();
  for (size_t i = 0; i < 3 * kScanSlots; ++i) {
    std::string piece(kMaxScanData - i, static_cast<char>('a' + i));
    char* slot = ring->free_slot();
    ASSERT_NE(slot, nullptr) << i;
    std::memcpy(slot, piece.data(), piece.size());
    ring->laid();
    auto seen = view->take(piece.size());
    ASSERT_TRUE(seen);
    EXPECT_EQ(*seen, piece);
    EXPECT_TRUE(ring->taken(view->taken()));
  }
}

TEST(ScanRing, WhatWasNotTakenIsNotWrittenOver) {
  auto ring = ScanRing::make();
  ASSERT_TRUE(ring);
  for (size_t i = 0; i < kScanSlots; ++i) {
    ASSERT_NE(ring->free_slot(), nullptr);
    ring->laid();
  }
  EXPECT_EQ(ring->free_slot(), nullptr);
  EXPECT_FALSE(ring->taken(kScanSlots + 1)) << "more than were laid";
  EXPECT_TRUE(ring->taken(1));
  EXPECT_NE(ring->free_slot(), nullptr);
  EXPECT_FALSE(ring->taken(0)) << "fewer than before";
}

TEST(ScanRing, MemoryThatMayShrinkIsRefused) {
  auto size = static_cast<off_t>(kScanSlots * kMaxScanData);
  Fd loose(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.get(), size), 0);
  EXPECT_FALSE(ScanRingView::map(loose));
  ASSERT_EQ(::fcntl(loose.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_TRUE(ScanRingView::map(loose));
  Fd small(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(small.get(), size / 2), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(ScanRingView::map(small));
  Fd none(::open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(ScanRingView::map(none));
}

TEST(ScanRing, NoPieceIsLongerThanItsSlot) {
  auto ring = ScanRing::make();
  auto view = ScanRingView::map(ring->fd());
  EXPECT_FALSE(view->take(kMaxScanData + 1));
  EXPECT_TRUE(view->take(kMaxScanData));
}

}  // namespace
}  // namespace isola::gate
