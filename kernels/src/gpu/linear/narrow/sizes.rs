//! What is multiplied by few rows, in sixteens, blocks and bytes.

use tensor::DType;

use crate::gpu::linear::narrow::choice::{Choice, is_heavy};
use crate::gpu::linear::narrow::{MOST_COLUMN_TILES, MOST_ROW_BLOCKS};
use crate::gpu::linear::work::{Work, dtypes};
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

/// Of rows, of all matrices.
pub fn sixteens(work: &Work<'_>) -> usize {
    let heights = work.heights.iter();
    heights.map(|rows| rows.div_ceil(TILE_ROWS)).sum()
}

/// Bytes of 16 rows of a matrix of the largest type.
pub fn sixteen_bytes(work: &Work<'_>) -> usize {
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
