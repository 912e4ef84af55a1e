//! AMX int8: detection, the system's permission, and the instructions (their intrinsics are not stable).
//!
//! Tiles 0 to 2 hold sums (16 columns x 16 rows of i32), 3 activations of two units (16 columns x 64 bytes), 4 their
//! weights (16 quads x 64 bytes); 5 activations of one unit (16 columns x 32
//! bytes), 6 and 7 weights of one unit (8 quads).

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::OnceLock;

use super::{DIGIT_LINES, Line, Sums, TILE_COLUMNS};

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
        (columns, 64),
        (columns, 64),
        (columns, 64),
        (16, 64),
        (columns, 32),
        (8, 64),
        (8, 64),
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

/// Bytes from a line to the next: the stride of every tile.
const LINE: usize = size_of::<Line>();

/// 16 columns times 32 inputs, twice.
#[inline(always)]
pub(super) unsafe fn dot_pair(weights: *const Line, x: *const Line, sums: *mut Sums) {
    asm!(
        "tileloadd tmm5, [{x} + {line}]",
        "tileloadd tmm6, [{weights} + {line}]",
        "tilezero tmm0",
        "tdpbssd tmm0, tmm5, tmm6",
        "tileloadd tmm5, [{x} + {line} + 32]",
        "tileloadd tmm7, [{weights} + {line} + 512]",
        "tilezero tmm1",
        "tdpbssd tmm1, tmm5, tmm7",
        "tilestored [{sums} + {line}], tmm0",
        "tilestored [{sums} + {line} + 1024], tmm1",
        x = in(reg) x,
        weights = in(reg) weights,
        line = in(reg) LINE,
        sums = in(reg) sums,
        out("tmm0") _, out("tmm1") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
        options(nostack),
    );
}

/// Zeroes the sums of [`add`]. Tiles keep their values from one of these functions to the next: nothing else uses them.
#[inline(always)]
pub(super) unsafe fn clear() {
    asm!(
        "tilezero tmm0",
        "tilezero tmm1",
        "tilezero tmm2",
        out("tmm0") _, out("tmm1") _, out("tmm2") _,
        options(nostack, nomem),
    );
}

const _: () = assert!(DIGIT_LINES * LINE == 4096, "as the addresses below say");

macro_rules! add {
    ($weights:ident, $x:ident, $dot:literal, $(($sums:literal, $at:literal)),+) => {
        asm!(
            "tileloadd tmm3, [{x} + {line}]",
            $(
                concat!("tileloadd tmm4, [{weights} + {line} + ", $at, "]"),
                concat!($dot, " ", $sums, ", tmm3, tmm4"),
            )+
            x = in(reg) $x,
            weights = in(reg) $weights,
            line = in(reg) LINE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _,
            options(nostack, readonly),
        )
    };
}

/// 16 columns times 64 inputs for each of `D` digits, on top of what the sums hold.
#[inline(always)]
pub(super) unsafe fn add<const D: usize, const SIGNED: bool>(weights: *const Line, x: *const Line) {
    match (D, SIGNED) {
        (2, false) => add!(weights, x, "tdpbsud", ("tmm0", "0"), ("tmm1", "4096")),
        (2, true) => add!(weights, x, "tdpbssd", ("tmm0", "0"), ("tmm1", "4096")),
        (3, true) => {
            add!(
                weights,
                x,
                "tdpbssd",
                ("tmm0", "0"),
                ("tmm1", "4096"),
                ("tmm2", "8192")
            )
        }
        _ => unreachable!("no type has such digits"),
    }
}

/// Writes the sums of `D` digits.
#[inline(always)]
pub(super) unsafe fn store<const D: usize>(sums: *mut Sums) {
    asm!("tilestored [{0} + {1}], tmm0", in(reg) sums, in(reg) LINE, options(nostack));
    if D > 1 {
        asm!("tilestored [{0} + {1} + 1024], tmm1", in(reg) sums, in(reg) LINE, options(nostack));
    }
    if D > 2 {
        asm!("tilestored [{0} + {1} + 2048], tmm2", in(reg) sums, in(reg) LINE, options(nostack));
    }
}
