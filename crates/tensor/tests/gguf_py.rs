//! Agreement with gguf-py 0.19.0 (the `gguf` package, module `gguf.quants`).
//!
//! `data/gguf_py_blocks.json` was made once with that package: random bytes
//! with finite scales and what it dequantised them to, and rows of normal
//! deviates with what it quantised them to. One entry to a line.

use tensor::{DType, decode_row, encode_row};

struct Entry {
    dtype: DType,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

/// The entries of the list `section`; reads the fixture's own line format.
fn entries(section: &str) -> Vec<Entry> {
    let text = include_str!("data/gguf_py_blocks.json");
    let (_, rest) = text
        .split_once(&format!("\"{section}\":["))
        .expect("the section is there");
    rest.lines()
        .skip(1)
        .take_while(|line| line.starts_with('{'))
        .map(entry)
        .collect()
}

fn entry(line: &str) -> Entry {
    let mut quoted = line.split('"');
    let name = quoted.nth(3).expect("a type");
    let hex = quoted.nth(3).expect("some bytes");
    let (_, list) = line.split_once("\"values\":[").expect("some values");
    let (list, _) = list.split_once(']').expect("the end of the values");
    Entry {
        dtype: *DType::ALL
            .iter()
            .find(|d| d.name() == name)
            .expect("a known type"),
        bytes: (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
            .collect(),
        values: list
            .split(',')
            .map(|v| v.parse().expect("a number"))
            .collect(),
    }
}

#[test]
fn decodes_as_gguf_py() {
    let entries = entries("dequantised");
    for dtype in DType::ALL.iter().filter(|d| **d != DType::F32) {
        assert!(entries.iter().any(|e| e.dtype == *dtype), "{dtype} missing");
    }
    for entry in entries {
        let mut out = vec![f32::NAN; entry.values.len()];
        decode_row(entry.dtype, &entry.bytes, &mut out).unwrap();
        for (i, (found, expected)) in out.iter().zip(&entry.values).enumerate() {
            assert!(
                (found - expected).abs() <= 1e-6 * expected.abs(),
                "{} element {i}: {found} is not {expected}",
                entry.dtype
            );
        }
    }
}

#[test]
fn encodes_as_gguf_py() {
    let entries = entries("quantised");
    assert_eq!(entries.len(), 4);
    for entry in entries {
        let mut out = vec![0; entry.bytes.len()];
        encode_row(entry.dtype, &entry.values, &mut out).unwrap();
        assert_eq!(out, entry.bytes, "{}", entry.dtype);
    }
}
