// The columns of a product as a warp reads them: forms of activations, of COLUMN_TILES tiles of columns. Needs that.
#pragma once
#include "activations.h"

// Where the columns' blocks for one tile of weights begin, and from one column tile to the next.
struct Columns {
    const u8* at;
    u64 stride;
    // Columns of the first tile, where there is only one.
    u32 count;
    // Of 256 inputs: products stay without the columns' scales, with which whoever adds them up multiplies them.
    u32 is_unscaled = 0;

    DEVICE_MEMBER const u8* tile(u32 ct) const { return at + ct * stride; }
    DEVICE_MEMBER bool has_own() const { return COLUMN_TILES > 1 || KEPT == 1 || lane_index() / 4 < count; }
    // Of those that are kept; what is made of the one column in place of others is not used.
    static DEVICE_MEMBER u32 own() { return lane_index() % (4 * KEPT); }
    // A lane's 16 bytes of a unit; columns that are not there are not read.
    DEVICE_MEMBER Vec4u unit(u32 ct, u32 offset) const {
        Vec4u v = {0, 0, 0, 0};
        if (has_own()) v = *reinterpret_cast<const Vec4u*>(tile(ct) + offset + 16 * own());
        return v;
    }
    // A lane's words of sums.
    DEVICE_MEMBER Vec2u sums(u32 ct) const {
        Vec2u v = {0, 0};
        if (has_own()) v = *reinterpret_cast<const Vec2u*>(tile(ct) + SUMS_256 + 8 * own());
        return v;
    }
    DEVICE_MEMBER Vec2f scales(u32 ct) const { return is_unscaled ? Vec2f{1.0f, 1.0f} : pair(ct, SCALES_256); }
    // Values of a lane's two columns.
    DEVICE_MEMBER Vec2f pair(u32 ct, u32 offset) const {
        if constexpr (KEPT == 1) return Vec2f{*reinterpret_cast<const float*>(tile(ct) + offset), 0.0f};
        else return *reinterpret_cast<const Vec2f*>(tile(ct) + offset + 8 * (lane_index() % 4));
    }
};
