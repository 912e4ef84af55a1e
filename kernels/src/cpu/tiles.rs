//! The int8 matrix unit (AMX): dot products of 16 columns with 16 weight rows in one instruction.
//!
//! A unit of packed weights is a right-hand tile as it stands: quads of inputs down, 16 weight rows across. The results
//! are exact integers, so they replace the vector units' dot products without a change of bits.

#[cfg(target_arch = "x86_64")]
mod amx;

use tensor::DType;

/// Columns of one call: the rows of a left-hand tile.
pub(crate) const TILE_COLUMNS: usize = 16;

/// Lines of weights in 256 inputs: from one digit's weights to the next's.
pub(crate) const DIGIT_LINES: usize = 64;

/// Who multiplies tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiles {
    /// Nobody: the vector units do all.
    None,
    /// The matrix unit.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// Plain loops with the matrix unit's operands, to test what surrounds it on machines without one.
    #[cfg(test)]
    Emulated,
}

/// 64 bytes of a tile: a quad of inputs of 16 weight rows, or 64 inputs of a column.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
#[expect(dead_code, reason = "written and read through pointers")]
pub(crate) struct Line(pub [u8; 64]);

/// A tile of results: `[column][weight row]`.
#[repr(align(64))]
#[expect(dead_code, reason = "written and read through pointers")]
pub(crate) struct Sums([[i32; 16]; TILE_COLUMNS]);

impl Tiles {
    /// Whether products of this type and as many columns are faster here than on the vector units: the one place to
    /// edit after a measurement.
    ///
    /// 2026-11-21, Sapphire Rapids, `cargo bench -p kernels --bench matmul -- 1`, 2048 x 2048, GOP/s against AVX-512 VNNI at 16, 32 and 64 columns: Q4_0 386/392,
    /// 476/379, 546/382; Q8_0 336/340, 427/343, 525/371; Q4_K 468/335, 636/343, 768/340; Q6_K 340/321, 484/314, 624/324.
    pub(crate) fn pays(self, dtype: DType, columns: usize) -> bool {
        let least = match dtype {
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 => 32,
            DType::Q8_0 | DType::Iq4Nl => 32,
            DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 16,
            // Mins of 16 inputs have no sums here.
            DType::Q2K => usize::MAX,
            // Its bytes times a sub-scale's digits are no bytes any more.
            DType::Iq4Xs => usize::MAX,
            DType::F32 | DType::F16 | DType::BF16 => usize::MAX,
        };
        self != Tiles::None && columns >= least
    }

    /// Whether this machine has it and the system lets this process use it. Asks the system the first time; threads
    /// started after that may use it too.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_available(self) -> bool {
        self != Tiles::Amx || amx::is_permitted()
    }

    /// Sets this thread's tiles up for the methods below.
    ///
    /// # Safety
    /// [`Tiles::is_available`] said yes where this is the matrix unit.
    pub(crate) unsafe fn configure(self) {
        #[cfg(target_arch = "x86_64")]
        if self == Tiles::Amx {
            amx::configure();
        }
    }

    /// Gives this thread's tiles up, so that switching threads need not save them.
    ///
    /// # Safety
    /// As [`Tiles::configure`].
    pub(crate) unsafe fn release(self) {
        #[cfg(target_arch = "x86_64")]
        if self == Tiles::Amx {
            amx::release();
        }
    }

    /// Dot products of two units, each with sums of its own. `weights`: 16 lines of signed bytes; `x`: a line for each
    /// column.
    ///
    /// # Safety
    /// This thread's tiles are configured, and all of that can be read.
    #[inline(always)]
    pub(crate) unsafe fn dot_pair(self, weights: *const Line, x: *const Line, sums: *mut Sums) {
        match self {
            Tiles::None => no_tiles(weights, x, sums),
            #[cfg(target_arch = "x86_64")]
            Tiles::Amx => amx::dot_pair(weights, x, sums),
            #[cfg(test)]
            Tiles::Emulated => {
                for unit in 0..2 {
                    emulated::clear(sums.add(unit));
                    let x = x.cast::<i8>().add(32 * unit);
                    emulated::add::<true>(weights.add(8 * unit), 8, x, sums.add(unit));
                }
            }
        }
    }

    /// A quarter of the dot products of 256 inputs (quarters ascending), with the weights of each of `D` digits:
    /// 16 lines for each, [`DIGIT_LINES`] apart. `x`: a line for each column. The last writes `D` tiles of sums.
    ///
    /// # Safety
    /// As [`Tiles::dot_pair`].
    #[inline(always)]
    #[cfg_attr(
        not(any(test, target_arch = "x86_64")),
        expect(unused_variables, reason = "no matrix unit on this architecture")
    )]
    pub(crate) unsafe fn dot_quarter<const D: usize, const SIGNED: bool>(
        self,
        quarter: usize,
        weights: *const Line,
        x: *const Line,
        sums: *mut Sums,
    ) {
        match self {
            Tiles::None => no_tiles(weights, x, sums),
            #[cfg(target_arch = "x86_64")]
            Tiles::Amx => {
                if quarter == 0 {
                    amx::clear();
                }
                amx::add::<D, SIGNED>(weights, x);
                if quarter == 3 {
                    amx::store::<D>(sums);
                }
            }
            #[cfg(test)]
            Tiles::Emulated => {
                for digit in 0..D {
                    if quarter == 0 {
                        emulated::clear(sums.add(digit));
                    }
                    let weights = weights.add(DIGIT_LINES * digit);
                    emulated::add::<SIGNED>(weights, 16, x.cast(), sums.add(digit));
                }
            }
        }
    }
}

fn no_tiles(_: *const Line, _: *const Line, _: *mut Sums) {
    unreachable!("only a matrix unit is asked for tiles")
}

/// What the instructions do.
#[cfg(test)]
mod emulated {
    use super::{Line, Sums, TILE_COLUMNS};

    /// `tilezero`.
    pub(super) unsafe fn clear(sums: *mut Sums) {
        sums.write(Sums([[0; 16]; TILE_COLUMNS]));
    }

    /// `tdpbssd` or `tdpbsud`, columns 64 bytes apart.
    pub(super) unsafe fn add<const SIGNED: bool>(
        weights: *const Line,
        quads: usize,
        x: *const i8,
        sums: *mut Sums,
    ) {
        for column in 0..TILE_COLUMNS {
            for row in 0..16 {
                let sum = sums.cast::<i32>().add(16 * column + row);
                for i in 0..4 * quads {
                    let weight = *weights.add(i / 4).cast::<u8>().add(4 * row + i % 4);
                    let weight = if SIGNED {
                        i32::from(weight as i8)
                    } else {
                        i32::from(weight)
                    };
                    *sum += weight * i32::from(*x.add(64 * column + i));
                }
            }
        }
    }
}
