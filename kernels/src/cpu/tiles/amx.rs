//! AMX int8: detection, the system's permission, and the instructions (their intrinsics are not stable).
//!
//! Tile 0 holds sums (16 columns x 16 rows of i32), 1 activations of a whole unit (16 columns x 32 bytes), 2 its weights
//! (8 quads x 64 bytes), 3 and 4 the same of half a unit.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{Sums, TILE_COLUMNS, Unit};

/// CPUID leaf 7, EDX.
const AMX_TILE: u32 = 1 << 24;
const AMX_INT8: u32 = 1 << 25;
/// CPUID leaf 1, ECX: `xgetbv` may be used.
const OSXSAVE: u32 = 1 << 27;
/// XCR0: the system saves tile configuration and tile data.
const XCR0_TILES: u64 = 3 << 17;

/// Whether the processor has it, the system saves its registers, and this process may use it.
pub(super) fn is_permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| is_present() && ask())
}

fn is_present() -> bool {
    if __cpuid_count(0, 0).eax < 7 || __cpuid_count(1, 0).ecx & OSXSAVE == 0 {
        return false;
    }
    let bits = AMX_TILE | AMX_INT8;
    if __cpuid_count(7, 0).edx & bits != bits {
        return false;
    }
    let (low, high): (u32, u32);
    // SAFETY: reads a register; OSXSAVE above says that the instruction is enabled.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    }
    let xcr0 = u64::from(high) << 32 | u64::from(low);
    xcr0 & XCR0_TILES == XCR0_TILES
}

/// Linux leaves tile data off until a process asks: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let result: u64;
    // SAFETY: this call reads no memory of ours; `rcx` and `r11` are what `syscall` overwrites.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

/// Operand of `ldtilecfg`: palette 1, then bytes a row and rows of each tile.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}
const _: () = assert!(size_of::<Config>() == 64);

static CONFIG: Config = {
    let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
    let columns = TILE_COLUMNS as u8;
    let shapes = [
        (columns, 64),
        (columns, 32),
        (8, 64),
        (columns, 16),
        (4, 64),
    ];
    let mut tile = 0;
    while tile < shapes.len() {
        (rows[tile], row_bytes[tile]) = shapes[tile];
        tile += 1;
    }
    Config {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes,
        rows,
    }
};

/// Tiles as [`CONFIG`] shapes them, zeroed.
pub(super) unsafe fn configure() {
    asm!(
        "ldtilecfg [{}]",
        in(reg) &raw const CONFIG,
        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        options(nostack, readonly),
    );
}

/// Tiles as they are in a thread that never used them.
pub(super) unsafe fn release() {
    asm!(
        "tilerelease",
        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        options(nostack, nomem),
    );
}

/// 16 columns times 32 inputs.
#[inline(always)]
pub(super) unsafe fn dot_unit(weights: *const Unit, x: *const i8, stride: usize, sums: *mut Sums) {
    asm!(
        "tilezero tmm0",
        "tileloadd tmm1, [{x} + {stride}]",
        "tileloadd tmm2, [{weights} + {line}]",
        "tdpbsud tmm0, tmm1, tmm2",
        "tilestored [{sums} + {line}], tmm0",
        x = in(reg) x,
        stride = in(reg) stride,
        weights = in(reg) weights,
        line = in(reg) 64_usize,
        sums = in(reg) sums,
        out("tmm0") _, out("tmm1") _, out("tmm2") _,
        options(nostack),
    );
}

/// 16 columns times 16 inputs.
#[inline(always)]
pub(super) unsafe fn dot_half(
    weights: *const [u8; 64],
    x: *const i8,
    stride: usize,
    sums: *mut Sums,
) {
    asm!(
        "tilezero tmm0",
        "tileloadd tmm3, [{x} + {stride}]",
        "tileloadd tmm4, [{weights} + {line}]",
        "tdpbsud tmm0, tmm3, tmm4",
        "tilestored [{sums} + {line}], tmm0",
        x = in(reg) x,
        stride = in(reg) stride,
        weights = in(reg) weights,
        line = in(reg) 64_usize,
        sums = in(reg) sums,
        out("tmm0") _, out("tmm3") _, out("tmm4") _,
        options(nostack),
    );
}
