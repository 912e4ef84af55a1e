//! What the writer writes, the reader reads back; typed getters and damaged copies.

use gguf::{Array, GgufError, GgufFile, GgufWriter, Value};
use proptest::prelude::*;
use tensor::DType;

fn every_value() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", Value::String("test".into())),
        ("u8", Value::U8(u8::MAX)),
        ("i8", Value::I8(i8::MIN)),
        ("u16", Value::U16(u16::MAX)),
        ("i16", Value::I16(i16::MIN)),
        ("u32", Value::U32(u32::MAX)),
        ("i32", Value::I32(i32::MIN)),
        ("f32", Value::F32(-1.5)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("grüße \0 世界".into())),
        ("empty string", Value::String(String::new())),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(1e300)),
        ("a.u8", Value::Array(Array::U8(vec![1, 2]))),
        ("a.i8", Value::Array(Array::I8(vec![-1, 2]))),
        ("a.u16", Value::Array(Array::U16(vec![1, 65535]))),
        ("a.i16", Value::Array(Array::I16(vec![-1, 2]))),
        ("a.u32", Value::Array(Array::U32(vec![1, u32::MAX]))),
        ("a.i32", Value::Array(Array::I32(vec![-1, 2, 3]))),
        ("a.f32", Value::Array(Array::F32(vec![0.5, f32::INFINITY]))),
        ("a.bool", Value::Array(Array::Bool(vec![true, false]))),
        (
            "a.string",
            Value::Array(Array::String(["a", "", "ß"].iter().collect())),
        ),
        ("a.u64", Value::Array(Array::U64(vec![1, u64::MAX]))),
        ("a.i64", Value::Array(Array::I64(vec![-1, 7]))),
        ("a.f64", Value::Array(Array::F64(vec![0.25, -2.0]))),
        ("a.empty", Value::Array(Array::U32(vec![]))),
    ]
}

/// A file with every value type and every tensor type.
fn full_writer() -> GgufWriter<'static> {
    let mut writer = GgufWriter::new();
    for (key, value) in every_value() {
        writer.set(key, value);
    }
    for (i, &dtype) in DType::ALL.iter().enumerate() {
        let row = dtype
            .row_bytes(256)
            .expect("256 is a whole number of blocks");
        let data: Vec<u8> = (0..row * 3).map(|b| (b * 7 + i) as u8).collect();
        writer
            .add_tensor(dtype.name(), dtype, &[256, 3], data)
            .expect("a good tensor");
    }
    writer
        .add_tensor("odd", DType::F32, &[1, 1, 3, 1], vec![9u8; 12])
        .expect("a good tensor");
    writer
}

fn check_full(file: &GgufFile) {
    let got: Vec<_> = file
        .metadata()
        .iter()
        .map(|(k, v)| (k, v.clone()))
        .collect();
    assert_eq!(got, every_value());
    assert_eq!(file.tensor_count(), DType::ALL.len() + 1);
    for (i, &dtype) in DType::ALL.iter().enumerate() {
        let t = file
            .required_tensor(dtype.name())
            .expect("the tensor was written");
        assert_eq!(
            (t.name, t.dtype, t.dims),
            (dtype.name(), dtype, &[256, 3][..])
        );
        assert_eq!((t.cols(), t.rows()), (256, 3));
        assert_eq!(
            t.data.len(),
            dtype.row_bytes(256).expect("whole blocks") * 3
        );
        assert!(
            t.data
                .iter()
                .enumerate()
                .all(|(b, &v)| v == (b * 7 + i) as u8)
        );
    }
    let odd = file.tensor("odd").expect("the tensor was written");
    assert_eq!((odd.cols(), odd.rows(), odd.data), (1, 3, &[9u8; 12][..]));
    let names: Vec<_> = file.tensors().map(|t| t.name).collect();
    assert_eq!(names.first().copied(), Some("F32"));
    assert_eq!(names.last().copied(), Some("odd"));
}

#[test]
fn every_value_and_tensor_type_survives() {
    let bytes = full_writer().to_bytes().unwrap();
    let file = GgufFile::from_bytes("memory", bytes).unwrap();
    check_full(&file);
    assert_eq!((file.version(), file.alignment()), (3, 32));
    assert_eq!(file.architecture().unwrap(), "test");
}

#[test]
fn a_mapped_file_reads_the_same_after_release() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("full.gguf");
    let mut writer = full_writer();
    let big: Vec<u8> = (0..1 << 20).map(|i: u32| (i >> 3) as u8).collect();
    writer
        .add_tensor("big", DType::F16, &[1 << 10, 1 << 9], &big[..])
        .unwrap();
    writer.write_to(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), writer.to_bytes().unwrap());
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.file_len(), std::fs::metadata(&path).unwrap().len());
    assert_eq!(file.path(), path);
    file.advise_sequential().unwrap();
    for name in ["big", "odd", "F32"] {
        file.release(name).unwrap();
    }
    assert!(file.tensor("big").unwrap().data == big);
    assert!(
        file.release("nope")
            .unwrap_err()
            .to_string()
            .contains("tensor \"nope\": missing")
    );
}

#[test]
fn version_2_is_read_and_alignment_is_honoured() {
    for alignment in [1u32, 8, 64, 4096] {
        let mut writer = GgufWriter::new();
        writer.set("general.alignment", Value::U32(alignment));
        writer
            .add_tensor("a", DType::F16, &[3], vec![1u8; 6])
            .unwrap();
        writer
            .add_tensor("b", DType::F16, &[5], vec![2u8; 10])
            .unwrap();
        let mut bytes = writer.to_bytes().unwrap();
        bytes[4] = 2;
        let file = GgufFile::from_bytes("v2", bytes.clone()).unwrap();
        assert_eq!(
            (file.version(), file.alignment()),
            (2, u64::from(alignment))
        );
        let b = file.tensor("b").unwrap().data;
        assert_eq!(b, [2; 10]);
        assert_eq!(bytes.len() % alignment as usize, 0);
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut w = GgufWriter::new();
    let cases = [
        (
            w.add_tensor("t", DType::Q8_0, &[33], vec![0u8; 34]).err(),
            "dims[0]",
        ),
        (w.add_tensor("t", DType::F32, &[], vec![]).err(), "n_dims"),
        (
            w.add_tensor("t", DType::F32, &[2], vec![0u8; 7]).err(),
            "expected 8 bytes, got 7",
        ),
    ];
    for (error, want) in cases {
        let text = error.unwrap().to_string();
        assert!(
            text.contains("tensor \"t\"") && text.contains(want),
            "{text}"
        );
    }
    w.add_tensor("t", DType::F32, &[1], vec![0u8; 4]).unwrap();
    let twice = w
        .add_tensor("t", DType::F32, &[1], vec![0u8; 4])
        .unwrap_err();
    assert!(matches!(twice, GgufError::DuplicateTensor { .. }));
    w.set("general.alignment", Value::U32(24));
    assert!(
        w.to_bytes()
            .unwrap_err()
            .to_string()
            .contains("general.alignment")
    );
}

#[test]
fn getters_take_any_width_and_name_what_they_refuse() {
    let file = GgufFile::from_bytes("m.gguf", full_writer().to_bytes().unwrap()).unwrap();
    let m = file.metadata();
    assert_eq!(m.u32("u8").unwrap(), Some(255));
    assert_eq!(m.u32("u32").unwrap(), Some(u32::MAX));
    assert_eq!(m.required_u64("u64").unwrap(), u64::MAX);
    assert_eq!(m.u32("absent").unwrap(), None);
    assert_eq!(m.f32("f32").unwrap(), Some(-1.5));
    assert_eq!(m.f32("u8").unwrap(), Some(255.0));
    assert_eq!(m.bool("bool").unwrap(), Some(true));
    assert_eq!(m.str_array("a.string").unwrap().unwrap().len(), 3);
    assert_eq!(m.i32_array("a.i64").unwrap().unwrap(), [-1, 7]);
    assert_eq!(m.u32_array("a.u16").unwrap().unwrap(), [1, 65535]);
    assert_eq!(m.f32_array("a.f64").unwrap().unwrap(), [0.25, -2.0]);
    assert_eq!(m.bool_array("a.bool").unwrap().unwrap(), [true, false]);
    assert_eq!(m.u32_per_layer("u8", 3).unwrap().unwrap(), [255; 3]);
    assert_eq!(m.u32_per_layer("a.u8", 2).unwrap().unwrap(), [1, 2]);
    assert_eq!(m.u32_per_layer("absent", 2).unwrap(), None);

    let refused: Vec<(GgufError, &str, &str)> = vec![
        (
            m.required_u32("absent").unwrap_err(),
            "absent",
            "missing, expected an integer",
        ),
        (m.u32("i8").unwrap_err(), "i8", "got -128"),
        (
            m.u32("u64").unwrap_err(),
            "u64",
            "fits u32, got 18446744073709551615",
        ),
        (m.u32("string").unwrap_err(), "string", "got string"),
        (m.u32("bool").unwrap_err(), "bool", "got bool"),
        (m.f32("f64").unwrap_err(), "f64", "fits f32"),
        (
            m.f32("string").unwrap_err(),
            "string",
            "expected a number, got string",
        ),
        (m.bool("u8").unwrap_err(), "u8", "expected a bool, got u8"),
        (m.str("u8").unwrap_err(), "u8", "expected a string, got u8"),
        (m.str_array("a.u8").unwrap_err(), "a.u8", "got array of u8"),
        (
            m.i32_array("a.u32").unwrap_err(),
            "a.u32",
            "fit i32, got 4294967295",
        ),
        (m.u32_array("a.i8").unwrap_err(), "a.i8", "got -1"),
        (m.u32_array("a.f32").unwrap_err(), "a.f32", "got f32"),
        (
            m.f32_array("a.string").unwrap_err(),
            "a.string",
            "got array of string",
        ),
        (m.bool_array("a.u8").unwrap_err(), "a.u8", "got array of u8"),
        (
            m.u32_per_layer("a.u8", 3).unwrap_err(),
            "a.u8",
            "length: expected 3, got 2",
        ),
    ];
    for (error, key, want) in refused {
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("m.gguf: key \"{key}\": ")),
            "{text}"
        );
        assert!(text.contains(want), "{text} should contain {want}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn damage_never_panics(
        flips in prop::collection::vec((0usize..2600, any::<u8>()), 0..8),
        keep in prop::option::of(0usize..2600),
    ) {
        let mut bytes = full_writer().to_bytes().unwrap();
        for (at, value) in flips {
            bytes[at] = value;
        }
        if let Some(keep) = keep {
            bytes.truncate(keep);
        }
        if let Ok(file) = GgufFile::from_bytes("damaged", bytes) {
            for t in file.tensors() {
                let _ = (t.rows(), t.cols(), t.data.iter().map(|&b| u64::from(b)).sum::<u64>());
            }
        }
    }
}
