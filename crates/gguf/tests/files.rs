//! Files on disk: split models, missing files, and the goldens where they are present.

use std::path::{Path, PathBuf};

use gguf::{GgufFile, GgufWriter, Value};
use tensor::DType;

fn part_path(dir: &Path, part: u16) -> PathBuf {
    dir.join(format!("model-{part:05}-of-00003.gguf"))
}

/// Writes part `part` (from 1) of 3 with one tensor, claiming number `no`.
fn write_part(dir: &Path, part: u16, no: u16, tensor: &str) {
    let mut w = GgufWriter::new();
    w.set("split.no", Value::U16(no))
        .set("split.count", Value::U16(3));
    w.set("split.tensors.count", Value::I32(3));
    if part == 1 {
        w.set("general.architecture", Value::String("first".into()));
    }
    w.add_tensor(tensor, DType::F16, &[2], vec![part as u8; 4])
        .expect("a good tensor");
    w.write_to(part_path(dir, part))
        .expect("a writable directory");
}

fn split_model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (part, name) in [(1, "a"), (2, "b"), (3, "c")] {
        write_part(dir.path(), part, part - 1, name);
    }
    dir
}

fn refusal(path: &Path) -> String {
    match GgufFile::open(path) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(e) => e.to_string(),
    }
}

#[test]
fn any_part_opens_the_whole_model() {
    let dir = split_model();
    for part in 1..=3 {
        let file = GgufFile::open(part_path(dir.path(), part)).unwrap();
        assert_eq!(file.architecture().unwrap(), "first");
        assert_eq!(file.path(), part_path(dir.path(), 1));
        let got: Vec<_> = file.tensors().map(|t| (t.name, t.data[0])).collect();
        assert_eq!(got, [("a", 1), ("b", 2), ("c", 3)]);
        assert_eq!(file.tensor("c").unwrap().data, [3; 4]);
        let len = (1..=3).map(|p| std::fs::metadata(part_path(dir.path(), p)).unwrap().len());
        assert_eq!(file.file_len(), len.sum::<u64>());
        file.release("b").unwrap();
        file.advise_sequential().unwrap();
    }
}

#[test]
fn broken_splits_are_refused_by_name() {
    let dir = split_model();
    let first = part_path(dir.path(), 1);

    std::fs::remove_file(part_path(dir.path(), 3)).unwrap();
    let text = refusal(&first);
    assert!(
        text.ends_with("model-00003-of-00003.gguf: part 3 of 3: missing"),
        "{text}"
    );

    write_part(dir.path(), 3, 1, "c");
    let text = refusal(&first);
    let want = "model-00003-of-00003.gguf: key \"split.no\": value: expected 2, got 1";
    assert!(text.ends_with(want), "{text}");

    write_part(dir.path(), 3, 2, "a");
    let text = refusal(&first);
    assert!(
        text.contains("model-00003-of-00003.gguf: tensor \"a\": name"),
        "{text}"
    );

    let renamed = dir.path().join("model.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    let text = refusal(&renamed);
    assert!(
        text.contains("model.gguf: key \"split.count\": the file is one of 3"),
        "{text}"
    );

    let text = GgufFile::from_bytes("bytes", std::fs::read(&first).unwrap()).unwrap_err();
    assert_eq!(text.to_string(), "bytes: part 2 of 3: missing");
}

#[test]
fn a_split_with_too_few_tensors_is_refused() {
    let dir = split_model();
    let mut w = GgufWriter::new();
    w.set("split.no", Value::U16(2))
        .set("split.count", Value::U16(3));
    w.write_to(part_path(dir.path(), 3)).unwrap();
    let text = refusal(&part_path(dir.path(), 1));
    assert!(
        text.contains("key \"split.tensors.count\": value: expected 2, got 3"),
        "{text}"
    );
}

#[test]
fn missing_and_empty_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.gguf");
    assert!(refusal(&path).contains("none.gguf: cannot open and map the file"));
    std::fs::write(&path, b"").unwrap();
    assert!(refusal(&path).contains("none.gguf: header: magic: the file ends early"));
    assert!(refusal(dir.path()).contains("cannot open and map the file"));
}

#[test]
fn goldens_open() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/goldens/models");
    let Ok(entries) = std::fs::read_dir(&dir) else {
        println!("skipped: no goldens at {}", dir.display());
        return;
    };
    let mut opened = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let file = GgufFile::open(&path).unwrap_or_else(|e| panic!("{e}"));
        assert!(!file.architecture().unwrap().is_empty());
        assert!(file.required_tensor("token_embd.weight").unwrap().rows() > 0);
        assert!(
            file.metadata()
                .required_str_array("tokenizer.ggml.tokens")
                .is_ok()
        );
        opened += 1;
    }
    println!("opened {opened} goldens");
}
