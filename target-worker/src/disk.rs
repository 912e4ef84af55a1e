//! Prefixes in files: whether they are kept, and what decides whose they are.

use std::fs::File;
use std::io;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::{DiskCacheConfig, EngineConfig, Fingerprint, Fingerprinter};
use gguf::GgufFile;
use models::Model;

use crate::config::Config;

/// How long a prefix must not have been used before it is written: turns that follow each other more quickly leave nothing but
/// the last one's states on the disk.
const SETTLE: Duration = Duration::from_secs(10);
/// Samples of each tensor's bytes, evenly spread, and their length. Weights of two trainings differ nearly everywhere.
const SAMPLES: usize = 16;
const SAMPLE_BYTES: usize = 4096;

/// Where prefixes are kept in files; `None` where they are not.
pub(crate) fn disk_cache(
    config: &Config,
    sizes: &EngineConfig,
    file: &GgufFile,
    model: &Model,
) -> Result<Option<DiskCacheConfig>> {
    let Some(dir) = &config.kv_cache_dir else {
        return Ok(None);
    };
    if sizes.prefix_cache.slots == 0 {
        tracing::warn!("no prefix is kept in kv-cache-dir, for none is kept in memory");
        return Ok(None);
    }
    if !model.has_parts() {
        tracing::warn!("no prefix is kept in kv-cache-dir, for the target is split over devices");
        return Ok(None);
    }
    let budget = (config.kv_cache_budget as u64).saturating_mul(1 << 20);
    Ok(Some(DiskCacheConfig {
        dir: dir.clone(),
        budget_bytes: budget,
        min_tokens: config.kv_cache_min_tokens,
        settle: SETTLE,
        fingerprint: fingerprint(file, model)?,
    }))
}

/// All that decides the bits of a state: the program with its kernels, the device, the model's file and what was made of it. The
/// whole file is not read, which takes minutes where it is large: its metadata and its table of tensors are, and samples of
/// every tensor.
fn fingerprint(file: &GgufFile, model: &Model) -> Result<Fingerprint> {
    let mut maker = Fingerprinter::default();
    let program = std::env::current_exe().and_then(File::open);
    program
        .and_then(|program| {
            io::copy(
                &mut io::BufReader::with_capacity(1 << 20, program),
                &mut maker,
            )
        })
        .context("reading this program, whose kernels decide what states are")?;
    maker.add(model.device().arithmetic());
    maker.add(format!("{:?}", model.config()));
    maker.add(format!("{:?}", model.cache().shape()));
    maker.add(format!("{:?}", model.decode_window()));
    maker.add(file.file_len().to_le_bytes());
    for (key, value) in file.metadata().iter() {
        maker.add(key);
        maker.add(format!("{value:?}"));
    }
    for tensor in file.tensors() {
        maker.add(tensor.name);
        maker.add(format!("{:?} {:?}", tensor.dtype, tensor.dims));
        let step = (tensor.data.len() / SAMPLES).max(SAMPLE_BYTES);
        for sample in tensor.data.chunks(step) {
            maker.add(&sample[..sample.len().min(SAMPLE_BYTES)]);
        }
    }
    Ok(maker.finish())
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use kernels::CpuDevice;
    use models::{KvType, KvTypes, LoadOptions, load};

    use super::*;

    fn of(file: &GgufFile, kv_type: Option<KvType>) -> Fingerprint {
        let device = std::sync::Arc::new(CpuDevice::new(1).unwrap());
        let options = LoadOptions {
            max_tokens: 64,
            max_sequences: 1,
            max_batch_rows: 4,
            kv_type: kv_type.map(KvTypes::both),
        };
        let model = load(file, device, options, &mut |_| {}).unwrap();
        fingerprint(file, &model).unwrap()
    }

    #[test]
    fn another_weight_another_type_and_another_word_are_another_model() {
        let path = "../crates/models/tests/data/qwen35-nano-Q4_0.gguf";
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let bytes = std::fs::read(path).unwrap();
        let read = |bytes: &[u8]| GgufFile::from_bytes(PathBuf::from("nano"), bytes.to_vec());
        let file = read(&bytes).unwrap();
        let first = of(&file, None);
        assert_eq!(of(&file, None), first);
        assert_ne!(of(&file, Some(KvType::F32)), first);
        let change = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            of(&read(&bytes).unwrap(), None)
        };
        // In the last tensor; in the value of `general.name`, or another text of the metadata.
        assert_ne!(change(bytes.len() - 2000), first);
        let word = b"general.name".as_slice();
        let at = bytes.windows(word.len()).position(|w| w == word).unwrap();
        // Behind the key come a type of 4 bytes and a length of 8.
        assert_ne!(change(at + word.len() + 12), first);
    }
}
