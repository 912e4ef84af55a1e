//! Inputs, devices and comparisons that all cases share.

use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;

use kernels::{Buffer, CpuDevice, Device, DeviceName, Matrix, MatrixSource, Tier, open_device};
use tensor::DType;

/// A deterministic stream in -1..1 (SplitMix64).
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0)
            .collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    /// Random bytes that are valid blocks: every f16 scale field is made small and finite.
    pub(crate) fn weights(&mut self, dtype: DType, rows: usize, cols: usize) -> Vec<u8> {
        let total = rows * dtype.row_bytes(cols).expect("whole blocks");
        let scales: &[usize] = match dtype {
            DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            DType::F32 => return bytes_of(&self.values(rows * cols)),
            DType::F16 | DType::BF16 => &[0],
        };
        let mut bytes = self.bytes(total);
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            for &at in scales {
                // f16 of about 2^-10, and bf16 of about 2^-7.
                block[at + 1] = if dtype == DType::BF16 {
                    0x3c | (block[at + 1] & 0x81)
                } else {
                    0x14 | (block[at + 1] & 0x87)
                };
            }
        }
        bytes
    }
}

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Rows of a matrix as the file format defines them.
pub(crate) fn decoded(dtype: DType, cols: usize, bytes: &[u8]) -> Vec<Vec<f32>> {
    bytes
        .chunks_exact(dtype.row_bytes(cols).expect("whole blocks"))
        .map(|row| {
            let mut out = vec![0.0; cols];
            tensor::decode_row(dtype, row, &mut out).expect("a valid row");
            out
        })
        .collect()
}

/// Variable that names the devices to test: `cpu` (every instruction set of this machine), `emulated` (kernels for GPUs,
/// run on the host), `cuda:0` and its like; several with commas between them.
const DEVICES: &str = "TANDEM_TEST_DEVICES";

/// The devices to test; the CPU's instruction sets slowest first.
pub(crate) fn devices() -> Vec<Arc<dyn Device>> {
    let names = std::env::var(DEVICES).unwrap_or_else(|_| "cpu,emulated".to_owned());
    names.split(',').flat_map(device).collect()
}

/// Variable that, set to anything, asks for the smallest shapes and the fewest repetitions that say something: for sanitizers, under which
/// kernels take hundreds of times as long.
const SMALL: &str = "TANDEM_TEST_SMALL";

pub(crate) fn is_small() -> bool {
    std::env::var_os(SMALL).is_some()
}

/// Checks every element type, many at a time: kernels of each have to be compiled on GPUs. In small shapes one after another: racecheck
/// loses track of launches by several threads, and then does not end.
pub(crate) fn for_each_dtype(check: impl Fn(DType) + Sync) {
    let left = Mutex::new(DType::ALL.iter());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || std::iter::from_fn(next).for_each(|&dtype| check(dtype));
    let threads = match is_small() {
        true => 1,
        false => thread::available_parallelism().map_or(1, usize::from),
    };
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
}

fn device(name: &str) -> Vec<Arc<dyn Device>> {
    let name: DeviceName = name
        .parse()
        .unwrap_or_else(|error| panic!("{DEVICES}: {error}"));
    match name {
        DeviceName::Cpu => tiers(),
        name => vec![open_device(name, 0).unwrap_or_else(|error| panic!("{DEVICES}: {error}"))],
    }
}

/// The CPU with each instruction set of this machine.
fn tiers() -> Vec<Arc<dyn Device>> {
    static NAMED: Once = Once::new();
    NAMED.call_once(|| {
        for tier in Tier::ALL.iter().filter(|tier| !tier.is_available()) {
            eprintln!("skipped: no {} here", tier.name());
        }
    });
    let tier = |tier: &Tier| -> Arc<dyn Device> {
        Arc::new(CpuDevice::with_tier(2, *tier).expect("an available tier"))
    };
    let available = Tier::ALL.iter().filter(|tier| tier.is_available());
    available.map(tier).collect()
}

pub(crate) fn load(
    device: &dyn Device,
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: &[u8],
) -> Matrix {
    device
        .load_matrix(MatrixSource {
            dtype,
            rows,
            cols,
            bytes,
        })
        .expect("a matrix that loads")
}

pub(crate) fn zeros(device: &dyn Device, len: usize) -> Buffer {
    device.zeros(len).expect("memory")
}

pub(crate) fn upload(device: &dyn Device, values: &[f32]) -> Buffer {
    let mut buffer = zeros(device, values.len());
    device.write(&mut buffer, 0, values);
    buffer
}

pub(crate) fn download(device: &dyn Device, buffer: &Buffer) -> Vec<f32> {
    // A kernel that does not compile is said here, and is not taken for wrong values.
    device.finish().expect("operations that the device can do");
    let mut values = vec![0.0; buffer.len()];
    device.read(buffer, 0, &mut values);
    values
}

pub(crate) fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Norm of the difference over the norm of what is wanted.
pub(crate) fn relative_error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let error: f64 = got
        .iter()
        .zip(want)
        .map(|(g, w)| (f64::from(*g) - w).powi(2))
        .sum();
    let norm: f64 = want.iter().map(|w| w * w).sum();
    (error / norm.max(f64::MIN_POSITIVE)).sqrt()
}

/// Holds the results of one case to each other over instruction sets of the CPU. GPUs add in another order.
#[derive(Default)]
pub(crate) struct SameBits(Option<Vec<f32>>);

impl SameBits {
    pub(crate) fn check(&mut self, device: &dyn Device, got: Vec<f32>, what: &str) {
        if !device.name().starts_with("cpu") {
            return;
        }
        match &self.0 {
            None => self.0 = Some(got),
            Some(first) => assert!(same_bits(first, &got), "{what}: the bits differ"),
        }
    }
}
