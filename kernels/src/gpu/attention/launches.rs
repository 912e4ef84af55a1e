//! Kernels of attention: what they take, what they are compiled for, and how many blocks they get.

use crate::device::{AttentionArgs, KvLayer, PAGE_TOKENS, Segment};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::scratch::Scratch;
use crate::gpu::tables::TablePtrs;
use crate::kv::{KvType, KvTypes};

/// Places of a split; see gpu/attention.h.
pub(in crate::gpu) const SPLIT: usize = 256;
/// Threads of the kernels that prepare, attend and move.
pub(super) const THREADS: u32 = 128;
/// Threads that put splits together, and how many of them share four dims.
const COMBINE_THREADS: usize = 256;
const COMBINE_MEMBERS: usize = 16;
/// Query heads that a block takes together.
pub(super) const MAX_COLUMNS: usize = 8;
/// Tiles of eight columns that kernels for matrix units are compiled for.
const TILES: [usize; 4] = [1, 3, 5, 6];
/// Shared memory of theirs beside what launches ask for, with some to spare.
pub(super) const STATIC_BYTES: usize = 2048;
/// The largest head that a block's threads can hold.
const MAX_HEAD_DIM: usize = 1024;
/// Rows and layers that one launch moves; see gpu/kv.cu.
pub(super) const MOVES: usize = 64;
pub(super) const MOST_LAYERS: usize = 64;

/// See gpu/heads.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct PrepareArgs {
    pub q: DevicePtr,
    pub k: DevicePtr,
    pub v: DevicePtr,
    pub q_gamma: DevicePtr,
    pub k_gamma: DevicePtr,
    pub turns: DevicePtr,
    pub cache_k: DevicePtr,
    pub cache_v: DevicePtr,
    pub tables: TablePtrs,
    pub eps: f32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub q_stride: u32,
    pub pairs: u32,
    pub adjacent: u32,
}

/// See gpu/attention.h.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AttendArgs {
    pub q: DevicePtr,
    pub k: DevicePtr,
    pub v: DevicePtr,
    pub tables: TablePtrs,
    pub partials: DevicePtr,
    pub sums: DevicePtr,
    pub out: DevicePtr,
    pub tickets: DevicePtr,
    pub first_row: u32,
    pub end_row: u32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
    pub q_stride: u32,
    pub gated: u32,
    pub num_splits: u32,
    pub window: u32,
    pub causal: u32,
    pub tile_rows: u32,
    pub path_splits: u32,
}

/// Both, for rows that are made ready by those who attend; see gpu/attention_mma.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawAttendArgs {
    attend: AttendArgs,
    prepare: PrepareArgs,
}

/// See gpu/kv.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct AnswerArgs {
    pub out: DevicePtr,
    pub q: DevicePtr,
    pub tables: TablePtrs,
    pub num_heads: u32,
    pub q_stride: u32,
}

/// See gpu/kv.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MovedLayer {
    pub k: DevicePtr,
    pub v: DevicePtr,
    pub num_kv_heads: u32,
}

impl MovedLayer {
    pub const NONE: Self = Self {
        k: DevicePtr::NULL,
        v: DevicePtr::NULL,
        num_kv_heads: 0,
    };
}

/// See gpu/kv.cu.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MoveArgs {
    pub layers: [MovedLayer; MOST_LAYERS],
    pub count: u32,
    pub from: [u32; MOVES],
    pub to: [u32; MOVES],
}

/// Sizes of a layer's heads and how its keys and values are kept: what its kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::gpu) struct Shape {
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub types: KvTypes,
}

/// Types of a layer's keys and values.
pub(super) fn types_of(cache: &KvLayer) -> KvTypes {
    KvTypes {
        k: cache.k.kv_type(),
        v: cache.v.kv_type(),
    }
}

impl Shape {
    pub(in crate::gpu) fn of(args: &AttentionArgs<'_>) -> Self {
        Self {
            num_heads: args.num_heads,
            num_kv_heads: args.num_kv_heads,
            head_dim: args.head_dim,
            types: types_of(args.cache),
        }
    }

    pub(super) fn source(&self, name: &'static str, text: &'static str) -> Source {
        let number = |kv_type: KvType| (kv_type as u32).to_string();
        Source {
            name,
            text,
            defines: vec![
                ("HEAD_DIM", self.head_dim.to_string()),
                ("K_TYPE", number(self.types.k)),
                ("V_TYPE", number(self.types.v)),
            ],
        }
    }

    pub(super) fn keys_and_values(&self) -> Source {
        self.source("kv.cu", include_str!("../../../gpu/kv.cu"))
    }

    fn attend(&self) -> Source {
        let mut source = self.source("attention.cu", include_str!("../../../gpu/attention.cu"));
        source.defines.push(("GROUP", self.group().to_string()));
        source
    }

    /// `paths`: rows may find slots by their paths. `prepares`: their heads are made ready there.
    fn attend_mma(&self, tiles: usize, paths: bool, prepares: bool) -> Source {
        let text = include_str!("../../../gpu/attention_mma.cu");
        let mut source = self.source("attention_mma.cu", text);
        let flag = |name, is_set| (name, u32::from(is_set).to_string());
        source.defines.extend([
            ("GROUP", self.group().to_string()),
            ("TILES", tiles.to_string()),
            flag("PATHS", paths),
            flag("PREPARES", prepares),
        ]);
        source
    }

    /// Whether matrix units take keys and values.
    fn fits_units(&self) -> bool {
        self.types.k != KvType::F32 && self.types.v != KvType::F32
    }

    /// See gpu/attention.cu.
    fn fma_launch(&self, args: &AttendArgs) -> Launch {
        let columns = self.group().min(MAX_COLUMNS);
        let passes = self.group().div_ceil(columns);
        let pitch = columns.next_multiple_of(4);
        let queries_and_weights = (self.head_dim + SPLIT) * pitch;
        let sums = THREADS as usize * 8 * columns;
        Launch {
            grid: [
                args.end_row - args.first_row,
                (self.num_kv_heads * passes) as u32,
                args.num_splits,
            ],
            threads: THREADS,
            shared_bytes: ((queries_and_weights + SPLIT + sums) * size_of::<f32>()) as u32,
        }
    }

    /// Rows that tiles of columns hold; a warp looks at those of a block.
    fn tile_rows(&self, tiles: usize) -> usize {
        (tiles * 8 / self.group()).min(32)
    }

    /// See gpu/attention_mma.cu.
    fn mma_shared_bytes(&self, tiles: usize) -> usize {
        let (queries, weights) = (self.head_dim * 4 + 32, SPLIT * 4 + 32);
        let runs = SPLIT * size_of::<f32>();
        let of_row = self.group().next_multiple_of(8) * (queries + weights + runs);
        of_row.max(self.columns_bytes(tiles))
    }

    /// Of queries, and then weights, of so many tiles of columns: see `Q_PITCH` and `WEIGHT_PITCH`.
    fn columns_bytes(&self, tiles: usize) -> usize {
        tiles * 8 * (self.head_dim.max(SPLIT) * 4 + 32)
    }

    /// Of blocks that have one row each and make it ready.
    fn prepares_shared_bytes(&self, tiles: usize) -> usize {
        self.columns_bytes(tiles) + (self.group() + 1) * self.head_dim * size_of::<f32>()
    }

    fn mma_launch(&self, tiles: usize, args: &AttendArgs, prepares: bool) -> Launch {
        let rows = args.end_row - args.first_row;
        let of_tiles = rows.div_ceil(args.tile_rows) * args.num_splits;
        Launch {
            grid: [
                rows * args.path_splits + of_tiles,
                self.num_kv_heads as u32,
                1,
            ],
            threads: if tiles < 5 { 256 } else { 128 },
            shared_bytes: match prepares {
                true => self.prepares_shared_bytes(tiles) as u32,
                false => self.mma_shared_bytes(tiles) as u32,
            },
        }
    }

    fn combine(&self) -> Source {
        Source {
            name: "combine.cu",
            text: include_str!("../../../gpu/combine.cu"),
            defines: vec![("HEAD_DIM", self.head_dim.to_string())],
        }
    }

    pub(in crate::gpu) fn group(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Tiles of eight columns of one row.
    fn row_tiles(&self) -> usize {
        self.group().div_ceil(8)
    }

    /// Whether gpu/megakernel.cu knows such heads.
    pub(in crate::gpu) fn fits_megakernel(&self) -> bool {
        self.fits_units() && !self.types.rotates_values() && self.row_tiles() < 5
    }

    /// What gpu/megakernel.cu is compiled for.
    pub(in crate::gpu) fn megakernel_defines(&self) -> Vec<(&'static str, String)> {
        let mut defines = self.source("", "").defines;
        defines.push(("GROUP", self.group().to_string()));
        defines.push(("TILES", self.row_tiles().to_string()));
        defines
    }

    /// Bytes of a block there that scores keys, and mixes values by so many groups of warps: see `ScoreShared` and `MixShared`.
    pub(in crate::gpu) fn megakernel_bytes(&self, groups: usize) -> usize {
        let heads = |count: usize| count * self.head_dim * size_of::<f32>();
        let columns = |values: usize| self.row_tiles() * 8 * (values * size_of::<f32>() + 32);
        let score = heads(self.group() + 1) + columns(self.head_dim);
        let mix = heads(self.group()) + SPLIT * size_of::<u32>() + columns(SPLIT);
        score.max(groups * mix)
    }

    /// Panics on sizes that no model has, and where the cache is too small for pages that the segments name.
    pub(super) fn check(&self, cache: &KvLayer, segments: &[Segment<'_>]) {
        let dim = self.head_dim;
        assert!(
            dim.is_multiple_of(16) && self.num_heads.is_multiple_of(self.num_kv_heads),
            "attention: head sizes"
        );
        assert!(
            dim <= MAX_HEAD_DIM,
            "attention: heads of more than {MAX_HEAD_DIM} dims"
        );
        let mut last_page = None;
        for segment in segments {
            let used = (segment.committed_len + segment.parents.len()).div_ceil(PAGE_TOKENS);
            assert!(
                segment.pages.len() >= used,
                "attention: {} pages for {used} pages of rows",
                segment.pages.len()
            );
            last_page = last_page.max(segment.pages[..used].iter().max());
        }
        self.check_cache(cache, last_page);
    }

    /// Panics where the cache has no page of that number.
    pub(super) fn check_cache(&self, cache: &KvLayer, last_page: Option<&u32>) {
        assert!(
            types_of(cache) == self.types
                && [self.types.k, self.types.v]
                    .iter()
                    .all(|t| t.takes(self.head_dim)),
            "attention: types of keys and values"
        );
        let page_len = self.num_kv_heads * self.head_dim * PAGE_TOKENS;
        let num_pages = cache.k.len().min(cache.v.len()) / page_len;
        assert!(
            last_page.is_none_or(|&page| (page as usize) < num_pages),
            "attention: a page outside of the cache"
        );
    }
}

impl GpuDevice {
    /// Whether those that attend make their rows ready: where each is by itself, and there are matrix units for it.
    pub(super) fn attends_to_raw_rows(&self, shape: &Shape, longest: usize) -> bool {
        let shared = self.facts().shared_bytes_per_block as usize;
        let tiles = TILES[0];
        longest == 1
            && self.takes_units(shape)
            && shape.row_tiles() <= tiles
            && 2 * (shape.prepares_shared_bytes(tiles) + STATIC_BYTES) <= shared
    }

    fn takes_units(&self, shape: &Shape) -> bool {
        let arch = &self.facts().arch;
        (arch.starts_with("sm_") || arch == "host") && shape.fits_units()
    }

    /// Attends to every split, and puts the splits of each row together. By matrix units where there are some and keys are kept
    /// in what they take. `raw`: how rows are to be made ready, where that has not been done.
    pub(super) fn launch_attend(
        &self,
        shape: &Shape,
        args: &AttendArgs,
        raw: Option<&PrepareArgs>,
        longest: usize,
    ) -> Result<(), DeviceError> {
        let tiles = match raw {
            Some(_) => Some(TILES[0]),
            None => self.tiles(shape, args, longest),
        };
        match tiles {
            Some(tiles) if self.takes_units(shape) => {
                let rows = (args.end_row - args.first_row) as usize;
                let by_clusters = raw.is_some_and(|raw| self.attends_by_clusters(shape, args, raw));
                let of_row = match by_clusters {
                    true => shape.head_dim / 16,
                    false => 1,
                };
                let tickets = rows * shape.num_kv_heads * of_row * size_of::<u32>();
                // Few splits are put together by whoever does the last.
                let combines = args.num_splits as usize <= COMBINE_MEMBERS;
                let attend = AttendArgs {
                    tile_rows: shape.tile_rows(tiles).min(longest) as u32,
                    tickets: match combines {
                        true => self.scratch(Scratch::Tickets, tickets)?,
                        false => DevicePtr::NULL,
                    },
                    ..*args
                };
                let launch = shape.mma_launch(tiles, &attend, raw.is_some());
                let source = shape.attend_mma(tiles, args.path_splits > 0, raw.is_some());
                match raw {
                    Some(&prepare) if by_clusters => {
                        let (source, launch) =
                            (shape.attend_row(prepare.pairs), shape.row_launch(&attend));
                        let args = RawAttendArgs { attend, prepare };
                        self.launch(&source, "attend_row", launch, &args)?;
                    }
                    Some(&prepare) => {
                        let args = RawAttendArgs { attend, prepare };
                        self.launch(&source, "attend", launch, &args)?;
                    }
                    None => self.launch(&source, "attend", launch, &attend)?,
                }
                if combines {
                    return Ok(());
                }
            }
            _ => self.launch(&shape.attend(), "attend", shape.fma_launch(args), args)?,
        }
        self.launch_combine(shape, args)
    }

    /// Tiles of columns of a block: many, since they share what is read, unless that leaves multiprocessors idle. None
    /// where a group does not fit. `longest`: rows of the longest segment, which alone can share.
    fn tiles(&self, shape: &Shape, args: &AttendArgs, longest: usize) -> Option<usize> {
        let rows = (args.end_row - args.first_row) as usize;
        let shared = self.facts().shared_bytes_per_block as usize;
        // Two blocks at a time, so that one computes while the other waits.
        let fits = |&tiles: &usize| {
            shape.tile_rows(tiles) > 0
                && 2 * (shape.mma_shared_bytes(tiles) + STATIC_BYTES) <= shared
        };
        let blocks = |tiles| {
            rows.div_ceil(shape.tile_rows(tiles)) * shape.num_kv_heads * args.num_splits as usize
        };
        let mut fitting = TILES.into_iter().filter(fits);
        let least = fitting.next()?;
        let enough = self.facts().multiprocessors as usize;
        let pays = |tiles: &usize| blocks(*tiles) >= enough && longest > shape.tile_rows(least);
        Some(fitting.rfind(pays).unwrap_or(least))
    }

    fn launch_combine(&self, shape: &Shape, args: &AttendArgs) -> Result<(), DeviceError> {
        let dims = COMBINE_THREADS / COMBINE_MEMBERS * 4;
        let launch = Launch {
            grid: [
                args.end_row - args.first_row,
                shape.num_heads as u32,
                shape.head_dim.div_ceil(dims) as u32,
            ],
            threads: COMBINE_THREADS as u32,
            shared_bytes: 0,
        };
        self.launch(&shape.combine(), "combine", launch, args)
    }
}

/// All that is launched for heads of common models; see [`crate::gpu::sources`]. Of types that are not plain floats pairs in which
/// each is on either side, with as many columns as there are.
pub(in crate::gpu) fn sources() -> Vec<Source> {
    use KvType::{Bf16, F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Tq3_0};
    let shape = |[num_heads, num_kv_heads, head_dim]: [usize; 3], k, v| Shape {
        num_heads,
        num_kv_heads,
        head_dim,
        types: KvTypes { k, v },
    };
    let large = [24, 4, 256];
    let mut sources = Vec::new();
    for heads in [large, [32, 8, 128]] {
        for kv_type in [F32, F16] {
            let shape = shape(heads, kv_type, kv_type);
            sources.extend([shape.keys_and_values(), shape.attend()]);
            if shape.fits_units() {
                sources.push(shape.combine());
                sources.extend(TILES.map(|tiles| shape.attend_mma(tiles, true, false)));
                sources.extend([false, true].map(|raw| shape.attend_mma(TILES[0], false, raw)));
                sources.push(shape.attend_row(32));
            }
        }
    }
    for (k, v) in [
        (Q8_0, Q4_0),
        (Q4_0, Tq3_0),
        (Q5_1, Q5_0),
        (Q4_1, Q5_1),
        (Q5_0, Q8_0),
        (Tq3_0, Q4_1),
        (Bf16, Bf16),
    ] {
        let shape = shape(large, k, v);
        sources.extend([
            shape.keys_and_values(),
            shape.attend_mma(TILES[3], true, false),
        ]);
    }
    sources.push(shape(large, Q5_1, Tq3_0).attend());
    sources
}
