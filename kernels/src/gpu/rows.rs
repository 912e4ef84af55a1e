//! What is done to whole rows: embedding, gathering, copies into columns.

use crate::buffer::Buffer;
use crate::device::{Matrix, StoreColumnsArgs};
use crate::error::DeviceError;
use crate::gpu::device::GpuDevice;
use crate::gpu::driver::{DevicePtr, Launch, Source};
use crate::gpu::matrix::pack_source;
use crate::gpu::scratch::Scratch;

const ROWS: &str = include_str!("../../gpu/rows.cu");
/// Threads of a block that copies rows.
const COPY_THREADS: u32 = 256;
const EMBED_THREADS: u32 = 256;

fn source() -> Source {
    Source {
        name: "rows.cu",
        text: ROWS,
        defines: Vec::new(),
    }
}

/// All that this module launches; see [`crate::gpu::sources`].
pub(super) fn sources() -> Vec<Source> {
    vec![source()]
}

/// See gpu/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct GatherArgs {
    x: DevicePtr,
    rows: DevicePtr,
    out: DevicePtr,
    row_len: u32,
}

/// See gpu/rows.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct ColumnsArgs {
    x: DevicePtr,
    out: DevicePtr,
    row_len: u32,
    out_len: u32,
    first_column: u32,
}

/// See gpu/pack.cu.
#[derive(Clone, Copy)]
#[repr(C)]
struct EmbedArgs {
    tiles: DevicePtr,
    ids: DevicePtr,
    out: DevicePtr,
    dtype: u32,
    rows: u32,
    cols: u32,
    tiles_per_row: u32,
}

impl GpuDevice {
    pub(super) fn store_columns_op(&self, args: StoreColumnsArgs<'_>) -> Result<(), DeviceError> {
        let launch = Launch {
            grid: [args.num_rows as u32, 1, 1],
            threads: COPY_THREADS,
            shared_bytes: 0,
        };
        let columns = ColumnsArgs {
            x: args.x.on_gpu().memory.ptr(),
            out: args.out.on_gpu().memory.ptr(),
            row_len: args.row_len as u32,
            out_len: args.out_len as u32,
            first_column: args.first_column as u32,
        };
        self.launch(&source(), "store_columns", launch, &columns)
    }

    pub(super) fn gather_rows_op(
        &self,
        x: &Buffer,
        row_len: usize,
        rows: &[usize],
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let list: Vec<u32> = rows.iter().map(|&row| row as u32).collect();
        let rows = self.scratch(Scratch::Lists, size_of_val(&list[..]))?;
        // SAFETY: scratch memory of this size, and a list that is copied before the call returns.
        unsafe {
            self.driver
                .copy_to_device(rows, list.as_ptr().cast(), size_of_val(&list[..]))
        };
        let launch = Launch {
            grid: [list.len() as u32, 1, 1],
            threads: COPY_THREADS,
            shared_bytes: 0,
        };
        let args = GatherArgs {
            x: x.on_gpu().memory.ptr(),
            rows,
            out: out.on_gpu().memory.ptr(),
            row_len: row_len as u32,
        };
        self.launch(&source(), "gather_rows", launch, &args)
    }

    pub(super) fn embed_op(
        &self,
        table: &Matrix,
        ids: &[u32],
        out: &mut Buffer,
    ) -> Result<(), DeviceError> {
        let table = table.on_gpu();
        assert!(
            out.len() >= ids.len() * table.cols,
            "embed: out holds {} values",
            out.len()
        );
        let launch = Launch {
            grid: [
                ids.len() as u32,
                table.cols.div_ceil(EMBED_THREADS as usize) as u32,
                1,
            ],
            threads: EMBED_THREADS,
            shared_bytes: 0,
        };
        let args = EmbedArgs {
            tiles: table.memory.ptr(),
            // Those of a step are there already.
            ids: self.ids(ids)?,
            out: out.on_gpu().memory.ptr(),
            dtype: table.dtype.ggml_id(),
            rows: table.rows as u32,
            cols: table.cols as u32,
            tiles_per_row: table.tiles_per_row() as u32,
        };
        self.driver.unsettle();
        self.launch(&pack_source(), "embed", launch, &args)
    }
}
