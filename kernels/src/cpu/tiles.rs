//! The int8 matrix unit (AMX): dot products of 16 columns with 16 weight rows in one instruction.
//!
//! A unit of packed weights is a right-hand tile as it stands: quads of inputs down, 16 weight rows across. The results
//! are exact integers, so they replace the vector units' dot products without a change of bits.

#[cfg(target_arch = "x86_64")]
mod amx;

/// Columns of one call: the rows of a left-hand tile.
pub(crate) const TILE_COLUMNS: usize = 16;

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

/// Results of one call: `[column][weight row]`.
#[repr(align(64))]
#[expect(dead_code, reason = "written and read through pointers")]
pub(crate) struct Sums([[i32; 16]; TILE_COLUMNS]);

/// Weights of one unit as unsigned bytes: `[quad of inputs][weight row][input]`.
#[repr(align(64))]
#[expect(dead_code, reason = "written and read through pointers")]
pub(crate) struct Unit([[u8; 64]; 8]);

impl Tiles {
    /// Whether this machine has it and the system lets this process use it. Asks the system the first time; threads
    /// started after that may use it too.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_available(self) -> bool {
        self != Tiles::Amx || amx::is_permitted()
    }

    /// Sets this thread's tiles up for [`Tiles::dot`].
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

    /// Dot products over quads `FROM..TO` of a unit. `x`: 16 columns, `stride` bytes apart, at the unit's first input.
    /// Half units (4 quads) and whole ones (8) are known.
    ///
    /// # Safety
    /// This thread's tiles are configured, 32 activations can be read in each column, and the quads used are written.
    #[inline(always)]
    #[cfg_attr(
        not(any(test, target_arch = "x86_64")),
        expect(unused_variables, reason = "no matrix unit on this architecture")
    )]
    pub(crate) unsafe fn dot<const FROM: usize, const TO: usize>(
        self,
        weights: *const Unit,
        x: *const i8,
        stride: usize,
        sums: *mut Sums,
    ) {
        match self {
            Tiles::None => unreachable!("only a matrix unit is asked for tiles"),
            #[cfg(target_arch = "x86_64")]
            Tiles::Amx if TO - FROM == 8 => amx::dot_unit(weights, x, stride, sums),
            #[cfg(target_arch = "x86_64")]
            Tiles::Amx => amx::dot_half(
                weights.cast::<[u8; 64]>().add(FROM),
                x.add(4 * FROM),
                stride,
                sums,
            ),
            #[cfg(test)]
            Tiles::Emulated => emulated::<FROM, TO>(weights, x, stride, sums),
        }
    }
}

/// What `tdpbsud` does to a zeroed tile.
#[cfg(test)]
unsafe fn emulated<const FROM: usize, const TO: usize>(
    weights: *const Unit,
    x: *const i8,
    stride: usize,
    sums: *mut Sums,
) {
    for column in 0..TILE_COLUMNS {
        let x = x.add(column * stride);
        for row in 0..16 {
            let mut sum = 0;
            for quad in FROM..TO {
                for i in 0..4 {
                    let weight = weights.cast::<u8>().add(64 * quad + 4 * row + i);
                    sum += i32::from(*weight) * i32::from(*x.add(4 * quad + i));
                }
            }
            sums.cast::<i32>().add(16 * column + row).write(sum);
        }
    }
}
