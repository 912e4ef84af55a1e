//! Any bytes at all: opening them as a model may fail but never panics, and every tensor of what
//! opens can be read in full.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = gguf::GgufFile::from_bytes("fuzz", bytes.to_vec()) else {
        return;
    };
    for t in file.tensors() {
        let sum = t
            .data
            .iter()
            .fold(0u64, |sum, &b| sum.wrapping_add(b.into()));
        std::hint::black_box((sum, t.rows(), t.cols()));
        assert_eq!(
            t.dtype.row_bytes(t.cols()).map(|row| row * t.rows()),
            Some(t.data.len())
        );
    }
});
