//! What is multiplied by few rows, in sixteens, blocks and bytes.

use tensor::DType;

use crate::gpu::linear::narrow::choice::{Choice, is_heavy};
use crate::gpu::linear::narrow::{MOST_COLUMN_TILES, MOST_ROW_BLOCKS};
use crate::gpu::linear::work::{Work, dtypes, slices_of};
use crate::gpu::matrix::{Form, TILE_ROWS, tile_bytes};

/// Blocks of 256 inputs of a single row that a warp has at once: as many as there are for it.
pub fn row_blocks(choice: Choice, cols: usize) -> usize {
    let blocks = cols.div_ceil(256).div_ceil(choice.warps);
    if choice.row_inside {
        blocks.clamp(1, MOST_ROW_BLOCKS)
    } else {
        1
    }
}

/// See gpu/matmul_row.cu: of a piece's sums, and of what there is to know of it.
pub const ROW_SLOT_BYTES: usize = 4 * TILE_ROWS;
const PIECE_BYTES: usize = 16;

/// A row's weights of a block, all at once in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub warp_bytes: usize,
    /// Of rows, of a block, at most.
    pub sixteens: usize,
    /// No piece has more tiles.
    pub one_tile: bool,
    /// With all but the row.
    pub bytes: usize,
}

impl Held {
    /// Of blocks whose outputs and whose row have a thread, and 256 inputs a warp.
    pub fn of(work: &Work, (warps, slices): (usize, usize), blocks: usize) -> Option<Self> {
        let of_row = dtypes(work.types).map(|dtype| row_tile_bytes(dtype, work.cols));
        let (least, most) = of_row.fold((usize::MAX, 0), |(least, most), bytes| {
            (least.min(bytes), most.max(bytes))
        });
        // Blocks have as many bytes each; of rows of several types more or fewer, and one that two would share.
        let sixteens = match least == most {
            true => sixteens(work).div_ceil(blocks),
            false => (sixteens(work) * most).div_ceil(blocks * least) + 1,
        };
        if sixteens * TILE_ROWS > 32 * warps || work.cols > 256 * warps {
            return None;
        }
        let blocks_of_256 = work.cols.div_ceil(256);
        let all_slices = slices_of(work.cols);
        let start = |slice: usize| slice * blocks_of_256 / all_slices;
        let of_piece = (0..all_slices).step_by(slices);
        let of_piece = of_piece.map(|slice| start(slice + slices) - start(slice));
        let of_piece = of_piece.max().unwrap_or(0);
        let tiles = |dtype: DType| of_piece * (256 / Form::of(dtype).cols());
        let piece_bytes = dtypes(work.types).map(|dtype| tiles(dtype) * tile_bytes(dtype));
        let pieces = sixteens * work.matrices * all_slices / slices;
        let warp_bytes = pieces.div_ceil(warps) * piece_bytes.max()?;
        Some(Self {
            warp_bytes,
            sixteens,
            one_tile: dtypes(work.types).all(|dtype| tiles(dtype) <= 1),
            bytes: warps * warp_bytes + pieces * (ROW_SLOT_BYTES + PIECE_BYTES),
        })
    }
}

/// Of rows, of all matrices.
pub fn sixteens(work: &Work) -> usize {
    let heights = work.heights.iter();
    heights.map(|rows| rows.div_ceil(TILE_ROWS)).sum()
}

/// Bytes of 16 rows of a matrix of the largest type.
pub fn sixteen_bytes(work: &Work) -> usize {
    let bytes = dtypes(work.types).map(|dtype| row_tile_bytes(dtype, work.cols));
    bytes.max().unwrap_or_default()
}

/// Bytes of 16 rows of a matrix.
pub fn row_tile_bytes(dtype: DType, cols: usize) -> usize {
    cols.div_ceil(Form::of(dtype).cols()) * tile_bytes(dtype)
}

/// Bytes of one row in the forms that are read by products with such weights: see `forms_at` of gpu/activations.h.
pub(in crate::gpu) fn row_forms_bytes(types: u32, cols: usize) -> usize {
    let forms = [Form::By256, Form::By32, Form::Floats];
    let read = |form: &Form| dtypes(types).any(|dtype| Form::of(dtype) == *form);
    let bytes = |form: Form| cols.div_ceil(form.cols()) * form.row_block_bytes(types);
    forms.into_iter().filter(read).map(bytes).sum()
}

/// Float products and those that need more registers have none left for a second column tile.
pub fn most_column_tiles(types: u32) -> usize {
    let has_floats = dtypes(types).any(|dtype| Form::of(dtype) == Form::Floats);
    if has_floats || is_heavy(types) {
        1
    } else {
        MOST_COLUMN_TILES
    }
}
