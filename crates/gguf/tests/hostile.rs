//! Files that lie: each is refused with the name of the key or tensor and the field.

use gguf::GgufFile;

const F32: u32 = 0;
const Q8_0: u32 = 8;

/// Builds a file field by field, without the writer's checks.
struct Raw {
    version: u32,
    n_tensors: u64,
    n_kv: u64,
    body: Vec<u8>,
    data: usize,
}

fn raw() -> Raw {
    Raw {
        version: 3,
        n_tensors: 0,
        n_kv: 0,
        body: Vec::new(),
        data: 256,
    }
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

impl Raw {
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.body.extend(bytes);
        self
    }

    fn kv(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.n_kv += 1;
        self.bytes(&string(key.as_bytes()))
            .bytes(&type_id.to_le_bytes())
            .bytes(value)
    }

    fn array(self, key: &str, elem: u32, count: u64, elems: &[u8]) -> Self {
        let value = [&elem.to_le_bytes()[..], &count.to_le_bytes(), elems].concat();
        self.kv(key, 9, &value)
    }

    fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.n_tensors += 1;
        self = self
            .bytes(&string(name.as_bytes()))
            .bytes(&(dims.len() as u32).to_le_bytes());
        for d in dims {
            self = self.bytes(&d.to_le_bytes());
        }
        self.bytes(&type_id.to_le_bytes())
            .bytes(&offset.to_le_bytes())
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn build(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.to_le_bytes());
        out.extend(self.n_kv.to_le_bytes());
        out.extend(self.body);
        if self.data > 0 {
            out.resize(out.len().next_multiple_of(32) + self.data, 0);
        }
        out
    }
}

fn check(cases: Vec<(&str, Vec<u8>, &[&str])>) {
    for (what, bytes, wants) in cases {
        let text = match GgufFile::from_bytes("bad.gguf", bytes) {
            Ok(_) => panic!("{what}: the file was accepted"),
            Err(e) => e.to_string(),
        };
        for want in ["bad.gguf: "].iter().chain(wants) {
            assert!(
                text.contains(want),
                "{what}: \"{text}\" should contain \"{want}\""
            );
        }
    }
}

#[test]
fn the_builder_builds_good_files() {
    let file = raw()
        .kv("k", 7, &[1])
        .array("a", 8, 1, &string(b"x"))
        .tensor("late", &[8], F32, 64)
        .tensor("t", &[2, 2], F32, 0)
        .tensor("q", &[32], Q8_0, 96)
        .build();
    let file = GgufFile::from_bytes("good.gguf", file).unwrap();
    assert_eq!(file.tensors().count(), 3);
    assert!(GgufFile::from_bytes("empty.gguf", raw().with(|r| r.data = 0).build()).is_ok());
}

#[test]
fn headers() {
    let huge = |r: &mut Raw| r.n_tensors = u64::MAX;
    check(vec![
        (
            "empty",
            vec![],
            &["header: magic: the file ends early, 4 bytes needed but 0 remain"],
        ),
        (
            "magic",
            b"GGML\x03\0\0\0".to_vec(),
            &["magic", "got \"GGML\""],
        ),
        (
            "no version",
            b"GGUF\x03".to_vec(),
            &["header: version", "ends early"],
        ),
        (
            "v1",
            raw().with(|r| r.version = 1).build(),
            &["version: expected 2 or 3, got 1"],
        ),
        (
            "v0",
            raw().with(|r| r.version = 0).build(),
            &["version: expected 2 or 3, got 0"],
        ),
        (
            "big-endian",
            raw().with(|r| r.version = 3 << 24).build(),
            &["version", "big-endian"],
        ),
        (
            "tensor count",
            raw().with(huge).build(),
            &["header: n_tensors: 1844674407"],
        ),
        (
            "kv count",
            raw().with(|r| r.n_kv = 1 << 40).build(),
            &["header: n_kv: 1099511627776"],
        ),
        (
            "cut header",
            raw().build()[..20].to_vec(),
            &["header: n_kv", "ends early"],
        ),
    ]);
}

#[test]
fn keys() {
    let unnamed = |len: u64, text: &[u8]| {
        raw()
            .with(|r| r.n_kv = 1)
            .bytes(&len.to_le_bytes())
            .bytes(text)
            .build()
    };
    let align = |n: u32| raw().kv("general.alignment", 4, &n.to_le_bytes()).build();
    let alignment = "key \"general.alignment\": value: expected a power of two";
    check(vec![
        (
            "key length",
            unnamed(u64::MAX, b""),
            &["key #0: name: 18446744073709551615 is more"],
        ),
        (
            "key utf-8",
            unnamed(2, b"a\xff"),
            &["key #0: name: invalid utf-8 at byte 1"],
        ),
        (
            "long key",
            unnamed(70_000, &[b'k'; 70_000]),
            &["key #0: name: 70000", "at most 65535"],
        ),
        (
            "twice",
            raw().kv("k", 0, &[1]).kv("k", 0, &[1]).build(),
            &["key \"k\": name: appears"],
        ),
        (
            "type",
            raw().kv("k", 13, &[]).build(),
            &["key \"k\": type: expected a type id", "got 13"],
        ),
        (
            "bool",
            raw().kv("k", 7, &[2]).build(),
            &["key \"k\": value: expected a bool", "got 2"],
        ),
        (
            "bool array",
            raw().array("k", 7, 2, &[1, 9]).build(),
            &["key \"k\": value", "got 9"],
        ),
        (
            "string length",
            raw().kv("k", 8, &[0xff; 8]).build(),
            &["key \"k\": value: 1844674407"],
        ),
        (
            "string utf-8",
            raw().kv("k", 8, &string(b"\xc3")).build(),
            &["key \"k\": value: invalid utf-8"],
        ),
        (
            "nested",
            raw().array("k", 9, 0, &[]).build(),
            &["key \"k\": element type: nested arrays"],
        ),
        (
            "element type",
            raw().array("k", 99, 0, &[]).build(),
            &["key \"k\": element type", "got 99"],
        ),
        (
            "array count",
            raw().array("k", 12, 1 << 61, &[]).build(),
            &["key \"k\": array length: 2305"],
        ),
        (
            "strings count",
            raw().array("k", 8, u64::MAX, &[]).build(),
            &["key \"k\": array length"],
        ),
        (
            "string element",
            raw().array("k", 8, 1, &[0xff; 8]).build(),
            &["key \"k\": array element"],
        ),
        (
            "cut value",
            raw()
                .kv("key.long.enough", 12, &[0; 4])
                .with(|r| r.data = 0)
                .build(),
            &["key \"key.long.enough\": value: the file ends early, 8 bytes needed but 4 remain"],
        ),
        ("alignment 0", align(0), &[alignment, "got 0"]),
        ("alignment 48", align(48), &[alignment, "got 48"]),
        (
            "alignment huge",
            align(1 << 31),
            &[alignment, "got 2147483648"],
        ),
        (
            "alignment type",
            raw().kv("general.alignment", 8, &string(b"32")).build(),
            &[
                "key \"general.alignment\": type: expected an integer",
                "got string",
            ],
        ),
    ]);
}

#[test]
fn tensors() {
    let one = |dims: &[u64], id: u32, offset: u64| raw().tensor("t", dims, id, offset).build();
    let twice = raw()
        .tensor("t", &[1], F32, 0)
        .tensor("t", &[1], F32, 32)
        .build();
    let overlap = raw()
        .tensor("b", &[1], F32, 32)
        .tensor("a", &[16], F32, 0)
        .build();
    let inside = raw()
        .tensor("a", &[64], F32, 0)
        .tensor("b", &[1], F32, 64)
        .build();
    let same = raw()
        .tensor("a", &[1], F32, 0)
        .tensor("b", &[1], F32, 0)
        .build();
    let name = raw().with(|r| r.n_tensors = 1).bytes(&[0xff; 40]).build();
    let many = one(&[1, 1, 1, 1, 1], F32, 0);
    let cut = raw()
        .tensor("a.tensor", &[1, 1, 1, 1], F32, 0)
        .with(|r| r.data = 0)
        .build();
    let full = one(&[64], F32, 0);
    let outside = "tensor \"t\": offset: ";
    check(vec![
        ("name length", name, &["tensor #0: name: 1844674407"]),
        (
            "twice",
            twice,
            &["tensor \"t\": name: appears more than once"],
        ),
        (
            "no dims",
            raw()
                .tensor("t", &[], F32, 0)
                .tensor("u", &[1], F32, 0)
                .build(),
            &["tensor \"t\": n_dims", "got 0"],
        ),
        (
            "five dims",
            many,
            &["tensor \"t\": n_dims: expected 1 to 4, got 5"],
        ),
        (
            "zero dim",
            one(&[4, 0], F32, 0),
            &["tensor \"t\": dims[1]: expected at least 1"],
        ),
        (
            "product",
            one(&[1 << 32, 1 << 32], F32, 0),
            &["tensor \"t\": dims: the size of", "overflows"],
        ),
        (
            "bytes",
            one(&[1 << 62], F32, 0),
            &["tensor \"t\": dims: the size of", "overflows"],
        ),
        (
            "block",
            one(&[33, 2], Q8_0, 0),
            &[
                "tensor \"t\": dims[0]: expected a multiple of the Q8_0",
                "got 33",
            ],
        ),
        (
            "retired type",
            one(&[32], 16, 0),
            &["tensor \"t\": type: IQ2_XXS (id 16)"],
        ),
        (
            "unknown type",
            one(&[32], 4242, 0),
            &["tensor \"t\": type: unknown type (id 4242)"],
        ),
        (
            "unaligned",
            one(&[1], F32, 4),
            &["tensor \"t\": offset: expected a multiple of 32, got 4"],
        ),
        (
            "too large",
            one(&[65], F32, 0),
            &[outside, "260 bytes at offset 0", "of 256 bytes"],
        ),
        (
            "far",
            one(&[1], F32, 1 << 40),
            &[outside, "offset 1099511627776"],
        ),
        (
            "wrapping",
            one(&[1], F32, u64::MAX - 31),
            &[outside, "4 bytes at offset 18446744073709551584"],
        ),
        (
            "truncated data",
            full[..full.len() - 1].to_vec(),
            &[outside, "of 255 bytes"],
        ),
        (
            "no data",
            cut.clone(),
            &["tensor \"a.tensor\": offset: 4 bytes", "of 0 bytes"],
        ),
        (
            "cut row",
            cut[..cut.len() - 3].to_vec(),
            &["tensor \"a.tensor\": offset: the file ends early"],
        ),
        (
            "overlap",
            overlap,
            &["tensor \"b\": offset: 32 overlaps tensor \"a\""],
        ),
        (
            "inside",
            inside,
            &["tensor \"b\": offset: 64 overlaps tensor \"a\""],
        ),
        (
            "same place",
            same,
            &["tensor \"b\": offset: 0 overlaps tensor \"a\""],
        ),
    ]);
}
