//! The drafter and the device it comes to and leaves.

use anyhow::{Context, Result, ensure};
use gguf::GgufFile;
use kernels::{DeviceName, open_limited_device};
use models::{
    MemoryNeed, ModelConfig, ModelError, PromptScorer, ScorerOptions, max_scored_tokens,
    scorer_memory_need,
};
use worker_api::{CompressError, PrefillDescription};

use crate::config::Config;

/// A drafter whose weights are on its device or not. While they are not, it has no memory there, not even the device's own
/// bookkeeping.
pub(crate) struct Drafter {
    file: GgufFile,
    options: ScorerOptions,
    device: DeviceName,
    device_memory: Option<f64>,
    threads: usize,
    loaded: Option<PromptScorer>,
}

impl Drafter {
    /// Of a file that a scorer can be made of, and how to describe it. The device is looked at and let go again.
    pub fn new(config: &Config, file: GgufFile) -> Result<(Self, PrefillDescription)> {
        let path = file.path().display();
        let options = config.scorer_options()?;
        let device = open_limited_device(config.device()?, config.threads, config.device_memory)
            .context("device")?;
        let reading = || format!("the prefill drafter {path}");
        let model = ModelConfig::read(&file).with_context(reading)?;
        let least = scorer_memory_need(&file, &options, 0).with_context(reading)?;
        check_limit(config.device_memory, least.total()).with_context(reading)?;
        let tokens = model.context_length;
        let need = scorer_memory_need(&file, &options, tokens).with_context(reading)?;
        tell_fit(&need.on(device.as_ref()), tokens);
        let token_list = file.metadata().str_array("tokenizer.ggml.tokens")?;
        let description = PrefillDescription {
            name: name(&file),
            architecture: model.architecture.name().to_owned(),
            context_length: u32::try_from(max_scored_tokens(&model)).context("context length")?,
            vocab_size: u32::try_from(model.vocab_size).context("vocabulary")?,
            token_list: token_list.map(gguf::Strings::sha256),
            device: device.name(),
            is_resident: false,
        };
        let drafter = Self {
            file,
            options,
            device: config.device()?,
            device_memory: config.device_memory,
            threads: config.threads,
            loaded: None,
        };
        Ok((drafter, description))
    }

    pub fn is_loaded(&self) -> bool {
        self.loaded.is_some()
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> Result<u64, ModelError> {
        Ok(scorer_memory_need(&self.file, &self.options, 0)?.weights)
    }

    /// Brings the weights to the device if they are not there, where a prompt of `tokens` tokens fits beside them.
    pub fn load(&mut self, tokens: usize) -> Result<&mut PromptScorer, CompressError> {
        if let Some(ref mut loaded) = self.loaded {
            return Ok(loaded);
        }
        let device = open_limited_device(self.device, self.threads, self.device_memory);
        // A card that others have filled has no room for the runtime's own bookkeeping either.
        let device = device.map_err(|error| refusal(error.into()))?;
        let need = scorer_memory_need(&self.file, &self.options, tokens);
        let need = need.map_err(refusal)?.on(device.as_ref());
        if need.missing() > 0 {
            return Err(CompressError::NoRoom(words(&need, tokens)));
        }
        let scorer = PromptScorer::load(&self.file, device, self.options).map_err(refusal)?;
        Ok(self.loaded.insert(scorer))
    }

    /// Gives the device's memory back.
    pub fn park(&mut self) {
        self.loaded = None;
    }
}

/// A prompt's refusal, by what its sender can do about it.
pub(crate) fn refusal(error: ModelError) -> CompressError {
    let words = error.to_string();
    match error {
        ModelError::DoesNotFit { .. } => CompressError::NoRoom(words),
        ModelError::Device(error) if error.is_out_of_memory() => CompressError::NoRoom(words),
        ModelError::TokenOutOfRange { .. } => CompressError::Invalid(words),
        _ => CompressError::Model(words),
    }
}

/// What is never there is no use to wait for.
fn check_limit(device_memory: Option<f64>, bytes: u64) -> Result<()> {
    let Some(limit) = device_memory else {
        return Ok(());
    };
    let least = gib(bytes);
    ensure!(
        least <= limit,
        "device-memory is {limit} GiB, expected at least {least:.3} GiB for weights and scratch alone"
    );
    Ok(())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// What does not fit now may fit later, where the device is shared.
fn tell_fit(need: &MemoryNeed, tokens: usize) {
    let words = words(need, tokens);
    if need.missing() > 0 {
        tracing::warn!("the longest prompts do not fit now: {words}");
    } else {
        tracing::info!("the longest prompts fit: {words}");
    }
}

fn words(need: &MemoryNeed, tokens: usize) -> String {
    let available = need.available.map_or(String::new(), |available| {
        format!(", {:.2} GiB available", gib(available))
    });
    format!(
        "weights {:.2} + scratch {:.2} + a prompt of {tokens} tokens {:.2} = {:.2} GiB{available}",
        gib(need.weights),
        gib(need.scratch),
        gib(need.cache),
        gib(need.total()),
    )
}

/// `general.name`, or the file's name.
fn name(file: &GgufFile) -> String {
    let named = file.metadata().str("general.name").ok().flatten();
    let stem = || {
        file.path()
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    };
    named.map(str::to_owned).or_else(stem).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use kernels::DeviceError;

    use super::*;

    /// Others give way for a lack of room, and for nothing else.
    #[test]
    fn a_card_that_is_full_is_a_lack_of_room() {
        let full = DeviceError::MemoryFull {
            call: String::new(),
        };
        let broken = DeviceError::Driver {
            what: String::new(),
        };
        let of = |error: DeviceError| refusal(error.into());
        assert!(matches!(of(full), CompressError::NoRoom(_)));
        let bytes = 1;
        let missing = DeviceError::OutOfMemory { bytes };
        assert!(matches!(of(missing), CompressError::NoRoom(_)));
        assert!(matches!(of(broken), CompressError::Model(_)));
    }
}
