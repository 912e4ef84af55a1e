//! What gpu/matmul.cu and gpu/matmul_row.cu are compiled for.

use crate::gpu::driver::Source;
use crate::gpu::linear::narrow::choice::{
    BESIDE_CLUSTERS, Choice, FEW, FEW_TOGETHER, HEAVY_WARPS, SEVERAL, SMALL_AND_LIGHT, USUAL,
    is_heavy, is_light,
};
use crate::gpu::linear::narrow::{MOST_ROW_BLOCKS, most_column_tiles};
use crate::gpu::linear::work::SLICES;

/// What the kernel is compiled for besides, so that it is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Blocks of 256 inputs of a single row that a warp has at once.
    pub row_blocks: usize,
    /// Whether there is one matrix, or pair of them.
    pub one_job: bool,
    /// Of the inputs.
    pub slices: usize,
}

/// The kernel for such launches; `types`: bit mask of the types in use.
pub fn ring_source(
    types: u32,
    matrices: usize,
    choice: Choice,
    stages: usize,
    column_tiles: usize,
    kind: Kind,
) -> Source {
    let define = |name, value: usize| (name, value.to_string());
    Source {
        name: "matmul.cu",
        text: include_str!("../../../../gpu/matmul.cu"),
        defines: vec![
            ("TYPES", types.to_string()),
            define("GATED", matrices - 1),
            define("ONE_ROW", usize::from(choice.row_inside)),
            define("WARPS", choice.warps),
            define("STAGES", stages),
            define("RESIDENT", choice.resident),
            define("SLICES", kind.slices),
            define("SLICES_OF_PIECE", choice.slices),
            define("COLUMN_TILES", column_tiles),
            define("ROW_BLOCKS", kind.row_blocks),
            define("ONE_JOB", usize::from(kind.one_job)),
            define("CLUSTER", choice.cluster),
        ],
    }
}

/// The kernel for a row whose weights are held: whether it is normed, and whether no piece has more tiles than one.
pub fn row_source(
    types: u32,
    matrices: usize,
    choice: Choice,
    kind: Kind,
    (is_normed, one_tile): (bool, bool),
) -> Source {
    let define = |name, value: usize| (name, value.to_string());
    Source {
        name: "matmul_row.cu",
        text: include_str!("../../../../gpu/matmul_row.cu"),
        defines: vec![
            ("TYPES", types.to_string()),
            define("GATED", matrices - 1),
            define("WARPS", choice.warps),
            define("RESIDENT", choice.resident),
            define("SLICES", kind.slices),
            define("SLICES_OF_PIECE", choice.slices),
            define("ONE_JOB", usize::from(kind.one_job)),
            define("CLUSTER", choice.cluster),
            define("NORMED", usize::from(is_normed)),
            define("ONE_TILE", usize::from(one_tile)),
        ],
    }
}

/// For a row alone, for some rows and, where types have such products, for twice as many.
pub fn sources(types: u32, matrices: usize) -> Vec<Source> {
    let most = most_column_tiles(types);
    let full = Kind {
        row_blocks: MOST_ROW_BLOCKS,
        one_job: false,
        slices: SLICES / 2,
    };
    let short = Kind {
        row_blocks: 1,
        one_job: true,
        slices: SLICES,
    };
    let kinds = [
        (USUAL, 1, full),
        (USUAL, 1, short),
        (SMALL_AND_LIGHT, 1, short),
        (BESIDE_CLUSTERS, 1, short),
        (FEW, 1, short),
        (FEW_TOGETHER, 1, short),
        (SEVERAL, 1, full),
        (SEVERAL, 2, full),
    ];
    let is_used = |choice: Choice| choice != SMALL_AND_LIGHT || is_light(types);
    let kinds = kinds
        .into_iter()
        .filter(|(choice, tiles, _)| *tiles <= most && is_used(*choice));
    let sources = |(choice, column_tiles, kind): (Choice, usize, Kind)| {
        let heavy = Choice {
            warps: choice.warps.min(HEAVY_WARPS),
            resident: 1,
            ..choice
        };
        let choice = if is_heavy(types) { heavy } else { choice };
        // A row that is added to the residual one has no norm, and those of clusters are such.
        let of_row = (choice.cluster == 1, choice.cluster == 1 && !is_light(types));
        let row = choice
            .held
            .then(|| row_source(types, matrices, choice, kind, of_row));
        // Also of matrices that are too large to be held.
        let ring = ring_source(types, matrices, choice, 2, column_tiles, kind);
        [Some(ring), row].into_iter().flatten()
    };
    kinds.flat_map(sources).collect()
}
